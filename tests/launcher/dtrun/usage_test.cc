// The messages of dtrun before it starts any rank.

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "tests/launcher/dtrun/process_test.h"
#include "tests/support/completed_line.h"
#include "tests/support/json.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

void CheckOneLine(const CommandResult& result, int exit_code) {
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == exit_code);
  CHECK(LineCount(result.err) == 1);
  CHECK_THAT(result.err, StartsWith("dtrun: "));
  CHECK(result.out.empty());
}

TEST_CASE("a usage error is reported in one line with exit code 2") {
  const DtrunTest test;
  const Words line = GENERATE(
      Words{}, Words{"true"}, Words{"-np", "0", "true"}, Words{"-np", "a\nb", "true"},
      Words{"-np", "2"}, Words{"-np", "2", "--ps", "3", "true"}, Words{"--nmp", "2", "true"},
      Words{"-np", "3", "-H", "localhost:2", "true"}, Words{"-H", "localhost:-2", "true"},
      Words{"-np", "1", "-x", "NOT_SET_ANYWHERE", "true"}, Words{"-H", "[fd00::1]:1", "true"},
      Words{"-np", "1", "--mpi-args", "'", "true"}, Words{"--hostfile", "/", "true"},
      Words{"--hostfile", "/no/such/file", "true"}, Words{"--hostfile", "/dev/null", "true"},
      Words{"--config", "/no/such/file", "true"}, Words{"-np", "2", "--backend", "x", "true"},
      Words{"-np", "99999", "--bind", "core", "true"},
      Words{"-np", "1", "--network-interfaces", "nosuchif", "true"},
      Words{"-H", "h1", "--ssh-port", "7", "--mpi-args", "--mca plm_rsh_agent /bin/false", "true"},
      Words{"-H", std::string(300, 'x'), "true"});
  CAPTURE(line);
  CheckOneLine(test.Run(line), 2);
}

TEST_CASE("a usage error names the option and the value and the expected form") {
  DtrunTest test;
  test.folder = test.temp.path();
  test.environment = {{"BASH_FUNC_f%%", "() { :; }"}, {"DOTTED.NAME", "x"}};
  test.temp.Write("hosts", "localhost slots=1\nlocalhost slots=2\n");
  test.temp.Write("job.yaml", "np: 2\nnpp: 2\n");
  const auto [line, message] = GENERATE(table<Words, std::string>({
      {Words{}, "-np is missing: say how many ranks to start"},
      {Words{"-np", "0"}, "-np 0: expected a whole number from 1 to 1000000"},
      {Words{"-np", "2", "--ps", "0"}, "--ps 0: expected a whole number from 1 to 1000000"},
      {Words{"-np", "2", "--ps", "-1"}, "--ps -1: expected a whole number"},
      {Words{"-np", "2", "--ps", "some"}, "--ps some: expected a whole number"},
      {Words{"-np", "2", "--ps", "2"},
       "--ps 2: found 2 ranks; expected at least 3, because the ranks after the parameter servers "
       "are the workers"},
      {Words{"-np", "1", "--ps", "1"}, "--ps 1: found 1 rank; expected at least 2"},
      {Words{"-np", "-1"}, "-np -1: expected a whole number"},
      {Words{"-np", "abc"}, "-np abc: expected a whole number"},
      {Words{"-np", "2.5"}, "-np 2.5: expected a whole number"},
      {Words{"-np", "99999999999"}, "-np 99999999999: expected a whole number"},
      {Words{"-np", "3", "-H", "localhost:2"}, "requested 3 ranks, but the host list has 2 slots"},
      {Words{"-H", "localhost:-2"}, "localhost:-2 (column 1): expected a number of slots"},
      {Words{"-H", "localhost:"},
       "(column 1): expected a number of slots from 1 to 1000000, got ''"},
      {Words{"-H", "localhost:abc"}, "expected a number of slots from 1 to 1000000, got abc"},
      {Words{"-H", "a:1,:2"}, "item :2 (column 5): expected host:slots"},
      {Words{"-H", "a:1,,"}, "item '' (column 5): a host is missing"},
      {Words{"-H", "h:1:2"}, "item h:1:2 (column 1): expected a number of slots"},
      {Words{"-H", std::string(300, 'h')}, "(300 characters) (column 1): expected host:slots"},
      {Words{"-H", "[fd00::1]:2"},
       "Open MPI takes no IPv6 addresses; give the host's name instead"},
      {Words{"--hostfile", "no_such_file"}, "host file no_such_file: No such file or directory"},
      {Words{"--hostfile", "/"}, "host file /: Is a directory"},
      {Words{"--hostfile", "hosts"}, "hosts:2:1: found localhost again"},
      {Words{"--config", "job.yaml"}, "job.yaml:2:1: unknown key npp; did you mean np?"},
      {Words{"--config", "/"}, "configuration /: Is a directory"},
      {Words{"--nmp", "2"}, "unknown option --nmp; did you mean -np?"},
      {Words{"-np", "1", "-x", "NOT_SET"}, "-x NOT_SET: this variable is not set"},
      {Words{"-np", "1", "-x", "DOTTED.NAME"}, "expected the name of an environment variable"},
      {Words{"-np", "1", "-x", "BASH_FUNC_f%%"}, "expected the name of an environment variable"},
      {Words{"-np", "1", "-x", "A=b"}, "expected a name without a value"},
      {Words{"-H", "h1", "--ssh-identity", "no_such_key"},
       "no_such_key: No such file or directory"},
  }));
  CAPTURE(line);
  Words words = line;
  words.insert(words.end(), {"touch", "started"});
  const CommandResult result = test.Run(words);
  CheckOneLine(result, 2);
  CHECK_THAT(result.err, Contains(message));
  CHECK(test.temp.Entries().size() == 2);
}

TEST_CASE("a host that looks like an option or a command is refused and not executed") {
  const DtrunTest test;
  CheckOneLine(
      test.Run({"-H", "-oProxyCommand=touch${IFS}" + test.temp.path() + "/x:1", "true"}), 2);
  CheckOneLine(test.Run({"-H", "a;touch " + test.temp.path() + "/x:1", "true"}), 2);
  CHECK(test.temp.Entries().empty());
}

TEST_CASE("--help and --version print to stdout") {
  const DtrunTest test;
  CHECK_THAT(test.Run({"--help"}).out, Contains("-np"));
  CHECK_THAT(test.Run({"--version"}).out, StartsWith("dtrun "));
  CHECK(test.Run({"--help"}).exit_code == 0);
  CHECK(test.Run({"--version"}).err.empty());
}

TEST_CASE("a missing program is reported with exit code 127") {
  DtrunTest test;
  const CommandResult result = test.Run({"-np", "2", "no_such_program"});
  CheckOneLine(result, 127);
  CHECK_THAT(result.err, Contains("no_such_program"));
  CheckOneLine(test.Run({"-np", "2", "./no/such/program"}), 127);
}

TEST_CASE("if a program name exists only in the current folder then dtrun suggests the ./ form") {
  DtrunTest test;
  test.temp.Write("local_program", "#!/bin/sh\n", 0755);
  test.folder = test.temp.path();
  test.environment = {{"PATH", "/usr/bin:/bin"}};
  const CommandResult result = test.Run({"-np", "2", "local_program"});
  CheckOneLine(result, 127);
  CHECK_THAT(result.err, Contains("./local_program"));
}

TEST_CASE("a program that cannot be run is reported with exit code 126") {
  const DtrunTest test;
  const Words files = {
      test.temp.path(),
      test.temp.Write("not_executable", "#!/bin/sh\n", 0644),
      test.temp.Write("text", "echo hello\n", 0755),
      test.temp.Write("empty", "", 0755),
      test.temp.Write("no_interpreter", "#!/no/such/shell\n", 0755),
      test.temp.Write(
          "other_machine",
          std::string("\x7f"
                      "ELF\x01\x01") +
              std::string(64, '\0'),
          0755),
  };
  for (const std::string& file : files) {
    const CommandResult result = test.Run({"-np", "2", file});
    CheckOneLine(result, 126);
    CHECK_THAT(result.err, Contains(file));
  }
}

TEST_CASE("a program with a missing shared library is reported with exit code 126") {
  DtrunTest test = {.launcher = GENERATE(as<std::string>(), "mpirun", "local")};
  const std::string program = test.temp.path() + "/program";
  REQUIRE(
      testing::Run(
          {{"sh", "-c", "LC_ALL=C sed 's/libc\\.so\\.6/libq.so.6/g' /bin/echo >$0 && chmod +x $0",
            program}})
          .exit_code == 0);
  const CommandResult result = test.Run({"-np", "1", program});
  CHECK(result.exit_code == 126);
  CHECK(result.out.empty());
  CHECK_THAT(
      result.err,
      Contains("libq.so.6: cannot open shared object file") &&
          Contains("dtrun: rank 0 on localhost could not run its program: a shared library was not "
                   "found (ldd lists the libraries that the program needs)\n"));
  // Exit code 127 of a program is not mistaken for the loader's error.
  CHECK_THAT(test.RunScript(1, "exit 127").err, Contains("exited with code 127"));
}

TEST_CASE("--launcher mpirun without mpirun names the package to install and exits with code 69") {
  DtrunTest test;
  test.environment = {{"PATH", "/nonexistent"}};
  const CommandResult result = test.Run({"--launcher", "mpirun", "-np", "1", "/bin/true"});
  CheckOneLine(result, 69);
  CHECK_THAT(result.err, Contains("openmpi-bin"));
}

TEST_CASE("an mpirun of another MPI is reported with exit code 69") {
  DtrunTest test;
  test.temp.Write("mpirun", "#!/bin/sh\necho 'HYDRA build details:'\n", 0755);
  test.environment = {{"PATH", test.temp.path() + ":/usr/bin:/bin"}};
  const CommandResult result = test.Run({"--launcher", "mpirun", "-np", "1", "/bin/true"});
  CheckOneLine(result, 69);
  CHECK_THAT(result.err, Contains("HYDRA build details:"));
  CHECK(test.Run({"-np", "1", "/bin/true"}).exit_code == 0);  // no job needs this mpirun
}

TEST_CASE("a loader warning about LD_PRELOAD is not mistaken for the version of mpirun") {
  DtrunTest test;
  test.environment = {{"LD_PRELOAD", "/no/such/library.so"}};
  const CommandResult result = test.Run({"-np", "1", "echo", "started"});
  CHECK(result.exit_code == 0);
  CHECK(result.out == "started\n");
  CHECK_THAT(result.err, Contains("/no/such/library.so") && !Contains("dtrun:"));
}

TEST_CASE("--dry-run shows the command and the places of the ranks and starts no process") {
  const DtrunTest test;
  const CommandResult result = test.Run(
      {"--dry-run", "-np", "3", "-H", "localhost:2,far.example.org:2", "-x", "PATH", "touch",
       test.temp.path() + "/a b"});
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  CHECK(LineCount(result.out) == 7);
  CHECK_THAT(
      result.out, Contains("-H localhost,localhost,far.example.org") && Contains("-x PATH") &&
                      Contains("'+" + test.temp.path() + "/a b'") &&
                      Contains("\nrank 1 -> localhost: ") &&
                      Contains("\nrank 2 -> far.example.org\nnetwork of this host: "));
  CHECK(test.temp.Entries().empty());
}

TEST_CASE("--dry-run writes its plan as JSON to a file or to stdout") {
  const DtrunTest test;
  const std::string file = test.temp.path() + "/plan";
  const Words line = {"-np", "2", "-H", "localhost:1,h2:1", "echo", "a 'b'"};
  Words to_file = {"--dry-run", "--json", file};
  Words to_stdout = {"--dry-run", "--json", "-"};
  for (Words* words : {&to_file, &to_stdout}) words->insert(words->end(), line.begin(), line.end());
  const auto plan = ParseJson(test.Run(to_stdout).out);
  CHECK(plan["command"].back() == "+a 'b'");
  CHECK(plan["ranks"][0]["host"] == "localhost");
  CHECK(plan["ranks"][0].contains("cpus"));
  CHECK(plan["ranks"][1] == nlohmann::json({{"rank", 1}, {"local_rank", 0}, {"host", "h2"}}));
  CHECK(test.Run(to_file).exit_code == 0);
  CHECK(ReadJson(file)["ranks"] == plan["ranks"]);
  CheckOneLine(test.Run({"--dry-run", "--json", "/no/such/folder/x", "-np", "1", "true"}), 73);
}

TEST_CASE("--print-config and --print-env show the values and start no process") {
  DtrunTest test;
  test.environment = {{"DTRUN_BACKEND", "shm"}, {"SOME_TOKEN", "hush"}, {"MARK", "x y"}};
  const std::string file = test.temp.Write("job.yaml", "np: 3\n");
  const CommandResult config = test.Run({"--print-config", "--config", file, "--bind", "none"});
  CHECK(config.exit_code == 0);
  CHECK_THAT(
      config.out, Contains("np: 3  # " + file + ":1:5: np\n") &&
                      Contains("backend: shm  # DTRUN_BACKEND\n") &&
                      Contains("bind: none  # command line, --bind\n"));
  const CommandResult environment = test.Run({"--print-env", "-H", "h1,h2"});
  CHECK(environment.exit_code == 0);
  CHECK_THAT(
      environment.out, Contains("MARK='x y'\n") && Contains("SOME_TOKEN=<not shown>\n") &&
                           Contains("MASTER_ADDR=h1\n") && !Contains("hush"));
}

TEST_CASE("--check-build lists the parts of dtrun and fails if no job can start") {
  DtrunTest test;
  const CommandResult result = test.Run({"--check-build"});
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("[x] mpirun: /") && Contains("[x] dtrun_rank: /"));
  test.environment = {{"PATH", "/nonexistent"}};
  const CommandResult broken = test.Run({"--launcher", "mpirun", "--check-build"});
  CHECK(broken.exit_code == 69);
  CHECK_THAT(broken.out, Contains("[ ] mpirun: mpirun was not found in PATH"));
  CHECK(test.Run({"--check-build"}).exit_code == 0);
}

TEST_CASE("root gets a warning in one line and can turn it off") {
  if (geteuid() != 0) return;
  DtrunTest test;
  test.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", ""}};
  const CommandResult result = test.Run({"-np", "1", "true"});
  CHECK(result.exit_code == 0);
  CHECK(
      result.err ==
      "dtrun: warning: running as root (OMPI_ALLOW_RUN_AS_ROOT=1 ends this warning)\n");
  test.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}};
  CHECK(test.Run({"-np", "1", "true"}).err.empty());
}

// Bash with dtrun's completion, in a folder with files, folders and programs.
class CompletingBash {
 public:
  CompletingBash() {
    const std::string& folder = test_.temp.path();
    test_.temp.Write("dtrun.bash", test_.Run({"--completion"}).out);
    test_.temp.Write("hosts.txt", "localhost\n");
    test_.temp.Write("train_it", "#!/bin/sh\n", 0755);
    test_.temp.Write("train_notes", "none\n");
    for (const char* name : {"/logs", "/train_data", "/path"})
      std::filesystem::create_directory(folder + name);
    test_.temp.Write("path/zz_program", "#!/bin/sh\n", 0755);
    test_.temp.Write("path/zz_text", "text\n");
  }

  std::string operator()(const std::string& line, const std::string& setup = ":") const {
    const std::string& folder = test_.temp.path();
    return CompletedLine(folder, "source dtrun.bash; PATH=" + folder + "/path; " + setup, line);
  }

 private:
  DtrunTest test_;
};

TEST_CASE("bash completes options, their values, files and folders") {
  const CompletingBash complete;
  CHECK(complete("dtrun --print") == "dtrun --print-config --print-env ");
  CHECK(complete("dtrun -np 2 --bind s") == "dtrun -np 2 --bind socket ");
  CHECK(complete("dtrun -np 2 --bind=s") == "dtrun -np 2 --bind=socket ");
  CHECK(complete("dtrun --launcher=") == "dtrun --launcher=hydra local mpirun qrsh srun ssh ");
  CHECK(complete("dtrun --bucket-mb ") == "dtrun --bucket-mb auto ");
  CHECK(complete("dtrun --hostfile h") == "dtrun --hostfile hosts.txt ");
  CHECK(complete("dtrun --hostfile=h") == "dtrun --hostfile=hosts.txt ");
  CHECK(complete("dtrun --output-dir l") == "dtrun --output-dir logs ");
  CHECK(complete("dtrun --output-dir=l") == "dtrun --output-dir=logs ");
  CHECK(complete("dtrun --output-dir h") == "dtrun --output-dir h");
  CHECK(complete("dtrun --output-filename l") == "dtrun --output-filename logs ");  // an alias
  CHECK(complete("dtrun --verbose -x INPUTR") == "dtrun --verbose -x INPUTRC ");
}

TEST_CASE("bash completes programs that can run, then files, which are the program's") {
  const CompletingBash complete;
  CHECK(complete("dtrun -np 2 zz_") == "dtrun -np 2 zz_program ");
  CHECK(complete("dtrun -np=2 --bind=none zz_") == "dtrun -np=2 --bind=none zz_program ");
  CHECK(complete("dtrun -n 2 -H h1:1,h2:1 zz_") == "dtrun -n 2 -H h1:1,h2:1 zz_program ");
  CHECK(complete("dtrun -np 2 -- zz_") == "dtrun -np 2 -- zz_program ");
  CHECK(complete("dtrun -np 2 ./train_") == "dtrun -np 2 ./train_data ./train_it ");
  CHECK(complete("dtrun -np 2 train_") == "dtrun -np 2 train_data ");
  CHECK(complete("dtrun -np 2 ./train_it train_n") == "dtrun -np 2 ./train_it train_notes ");
  CHECK(complete("dtrun -np 2 ./train_it --pri") == "dtrun -np 2 ./train_it --pri");
  CHECK(complete("dtrun -H h1:1 -- ./train_it --pri") == "dtrun -H h1:1 -- ./train_it --pri");
}

TEST_CASE("bash completes the arguments of a program as without dtrun") {
  const CompletingBash complete;
  const std::string setup =
      "_train_it() { COMPREPLY=($(compgen -W \"$1-$COMP_CWORD --fast\" -- \"$2\")); }; "
      "complete -F _train_it train_it";
  CHECK(
      complete("dtrun -np=2 ./train_it a ", setup) ==
      "dtrun -np=2 ./train_it a --fast ./train_it-2 ");
  CHECK(complete("dtrun -H a:1 train_it --f", setup) == "dtrun -H a:1 train_it --fast ");
  CHECK(complete("dtrun -np 2 other --f", setup) == "dtrun -np 2 other --f");
}

TEST_CASE("bash completes dtrun doctor") {
  const CompletingBash complete;
  CHECK(complete("dtrun docto") == "dtrun doctor ");
  CHECK(complete("dtrun doctor --ssh") == "dtrun doctor --ssh-identity --ssh-port ");
  CHECK(complete("dtrun doctor --bi") == "dtrun doctor --bi");
  CHECK(complete("dtrun doctor --hostfile=h") == "dtrun doctor --hostfile=hosts.txt ");
  CHECK(complete("dtrun doctor -H h1:2 zz_") == "dtrun doctor -H h1:2 zz_program ");
}

TEST_CASE("--verbose shows the command before the job starts") {
  const DtrunTest test;
  const CommandResult result = test.Run({"--verbose", "-np", "1", "echo", "hi"});
  CHECK(result.exit_code == 0);
  CHECK(result.out == "hi\n");
  CHECK_THAT(result.err, StartsWith("dtrun: ") && Contains("mpirun -np 1"));
}

}  // namespace
}  // namespace dtrun::testing
