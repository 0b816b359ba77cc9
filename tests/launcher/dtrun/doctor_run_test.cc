// dtrun doctor on this host.

#include <catch2/catch.hpp>
#include <iterator>

#include "tests/launcher/dtrun/process_test.h"
#include "tests/support/json.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

struct DoctorTest : DtrunTest {
  CommandResult Doctor(const Words& arguments) const {
    Command command = {{Dtrun(), "doctor"}, {{"TMPDIR", temp.path()}}, folder};
    command.argv.insert(command.argv.end(), arguments.begin(), arguments.end());
    command.environment.insert(command.environment.end(), environment.begin(), environment.end());
    return testing::Run(command);
  }
};

TEST_CASE("doctor reports this host as ready and leaves no file") {
  const DoctorTest test;
  const CommandResult result = test.Doctor({"/bin/sh"});
  CAPTURE(result.out);
  CHECK(result.err == "");
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("Open MPI") && Contains("program /bin/sh: SHA-256 "));
  CHECK_THAT(result.out, Contains("\nThe host is ready.\n"));
  CHECK(test.temp.Entries().empty());
}

TEST_CASE("doctor writes all facts as JSON to stdout or to a file") {
  const DoctorTest test;
  const auto facts = ParseJson(test.Doctor({"--json", "-"}).out)["hosts"][0]["facts"];
  CHECK(facts["cpus"]["total"] > 0);
  CHECK(facts["cpus"]["cores"] > 0);
  CHECK(facts["cpus"]["numa_nodes"] > 0);
  CHECK(facts["memory"]["available_bytes"] > 0);
  CHECK(facts["memory"]["temporary_folder"] == test.temp.path());
  CHECK(facts["interfaces"].size() > 0);
  CHECK(facts["installation"]["missing_files"].empty());
  const std::string file = test.temp.path() + "/doctor.json";
  CHECK_THAT(test.Doctor({"--json", file}).out, Contains("The host is ready."));
  CHECK(ReadJson(file)["ready"] == true);
  CHECK(test.Doctor({"--json", "/no/such/folder/x"}).exit_code == 73);
}

TEST_CASE("doctor reports the same checksum of a program as sha256sum") {
  const DoctorTest test;
  const std::string program = test.temp.Write("train", "#!/bin/sh\n", 0755);
  const auto host = ParseJson(test.Doctor({"--json", "-", program}).out)["hosts"][0];
  const CommandResult sum = Run({{"sha256sum", program}});
  CHECK(host["facts"]["program"]["sha256"].get<std::string>() == sum.out.substr(0, 64));
}

TEST_CASE("doctor reports why a program cannot be run and does not run the program") {
  DoctorTest test;
  test.folder = test.temp.path();
  const std::string script =
      test.temp.Write("trainer", "#!/no/such/shell\ntouch " + test.temp.path() + "/ran\n", 0755);
  for (const std::string& program :
       {script, test.temp.Write("text", "text"), test.temp.path() + "/missing", test.temp.path(),
        std::string("trainer")}) {
    const CommandResult result = test.Doctor({program});
    CAPTURE(program, result.out);
    CHECK(result.exit_code == 69);
    CHECK_THAT(result.out, Contains("PROBLEM ") && Contains(": program: found "));
  }
  CHECK(test.temp.Entries() == Words{"text", "trainer"});
}

TEST_CASE("doctor reports a missing shared library and does not run the program") {
  DoctorTest test;
  const std::string folder = test.temp.path();
  test.temp.Write("f.c", "int f(void) { return 0; }\n");
  test.temp.Write(
      "main.c",
      "#include <fcntl.h>\nint f(void);\n__attribute__((constructor)) void run(void) { open(\"" +
          folder + "/ran\", O_CREAT, 0600); }\nint main(void) { return f(); }\n");
  const auto build = [&](const std::string& line) {
    REQUIRE(Run({{"sh", "-c", "cd " + folder + " && gcc " + line}}).exit_code == 0);
  };
  build("-shared -fPIC -o libdtrunf.so f.c");
  build("-o main main.c -L. -ldtrunf");
  const CommandResult without = test.Doctor({folder + "/main"});
  CHECK(without.exit_code == 69);
  CHECK_THAT(without.out, Contains("libraries of the program: found missing: libdtrunf.so;"));
  test.environment = {{"LD_LIBRARY_PATH", folder}};
  const CommandResult with = test.Doctor({folder + "/main"});
  CAPTURE(with.out);
  CHECK(with.exit_code == 0);
  CHECK_FALSE(std::filesystem::exists(folder + "/ran"));
}

TEST_CASE("doctor finds the libraries beside a program that is named by a link") {
  const DoctorTest test;
  const std::string folder = test.temp.path();
  test.temp.Write("f.c", "int f(void) { return 0; }\n");
  test.temp.Write("main.c", "int f(void);\nint main(void) { return f(); }\n");
  const std::string line = "cd " + folder +
                           " && gcc -shared -fPIC -o libdtrunf.so f.c && gcc -o main main.c -L. "
                           "-ldtrunf -Wl,-rpath,'$ORIGIN' && mkdir bin && ln -s ../main bin/train";
  REQUIRE(Run({{"sh", "-c", line}}).exit_code == 0);
  REQUIRE(Run({{folder + "/bin/train"}}).exit_code == 0);
  const CommandResult result = test.Doctor({folder + "/bin/train"});
  CAPTURE(result.out);
  CHECK(result.exit_code == 0);
}

TEST_CASE("doctor reports a missing Open MPI and an mpirun of another MPI") {
  DoctorTest test;
  test.environment = {{"PATH", test.temp.path()}};
  const CommandResult none = test.Doctor({"--launcher", "mpirun"});
  CHECK(none.exit_code == 69);
  CHECK_THAT(none.out, Contains("found no mpirun in PATH") && Contains("apt-get install openmpi"));
  const CommandResult not_needed = test.Doctor({});
  CHECK(not_needed.exit_code == 0);
  CHECK_THAT(not_needed.out, !Contains("Open MPI"));
  test.temp.Write("mpirun", "#!/bin/sh\necho HYDRA build details:\n", 0755);
  const CommandResult other = test.Doctor({"--launcher", "mpirun"});
  CHECK(other.exit_code == 69);
  CHECK_THAT(other.out, Contains("found 'HYDRA build details:'; expected mpirun of Open MPI 4"));
  CHECK_THAT(test.Doctor({}).out, Contains(", launcher local") && Contains("The host is ready."));
}

TEST_CASE("doctor names a launcher that cannot start the job and one that can") {
  DoctorTest test;
  const CommandResult local = test.Doctor({"--launcher", "local", "-H", "localhost:1,127.0.0.2:1"});
  CHECK(local.exit_code == 69);
  CHECK_THAT(
      local.out,
      Contains(": launcher: found local, which cannot start the job: --launcher local") &&
          Contains("; expected another launcher -> --launcher mpirun\n"));
  test.environment = {{"SLURM_JOB_ID", ""}};
  const CommandResult outside = test.Doctor({"--launcher", "srun"});
  CHECK(outside.exit_code == 69);
  CHECK_THAT(
      outside.out,
      Contains(": launcher: found srun, which cannot start the job: ") &&
          (Contains("SLURM_JOB_ID is not set; start dtrun in a batch script (sbatch)") ||
           Contains("no srun in PATH")));
  test.environment = {{"SLURM_JOB_ID", "41"}, {"PATH", test.temp.path()}};
  CHECK_THAT(test.Doctor({"--launcher", "srun"}).out, Contains(" the job: no srun in PATH;"));
  CHECK(ParseJson(test.Doctor({"--json", "-"}).out)["launcher"] == "local");
}

TEST_CASE("doctor names a program of an MPI that the launcher does not serve") {
  DoctorTest test;
  const std::string folder = test.temp.path();
  test.temp.Write("mpi.cc", "int MPI_Init(int*, char***) { return 0; }\n");
  test.temp.Write(
      "main.cc", "int MPI_Init(int*, char***);\nint main() { return MPI_Init(0, 0); }\n");
  const auto program = [&](const std::string& library) {
    const std::string line = "cd " + folder + " && g++ -shared -fPIC -Wl,-soname," + library +
                             " -o " + library + " mpi.cc && g++ -o train main.cc ./" + library +
                             " -Wl,-rpath,'$ORIGIN'";
    const CommandResult built = Run({{"sh", "-c", line}});
    CAPTURE(built.err);
    REQUIRE(built.exit_code == 0);
    return folder + "/train";
  };
  const std::string mpich = program("libmpich.so.12");
  const CommandResult other = test.Doctor({"--launcher", "mpirun", mpich});
  CHECK(other.exit_code == 69);
  CHECK_THAT(
      other.out, Contains("MPI of the program: found libmpich.so.12; expected libmpi.so.40"));
  const CommandResult without = test.Doctor({"--launcher", "local", mpich});
  CHECK(without.exit_code == 0);
  CHECK_THAT(without.out, Contains("warning ") && Contains("expected no MPI with this launcher"));
  const CommandResult right = test.Doctor({"--launcher", "mpirun", program("libmpi.so.40")});
  CHECK(right.exit_code == 0);
  CHECK_THAT(right.out, !Contains("MPI of the program"));
}

TEST_CASE("doctor only warns about more ranks than CPUs") {
  const DoctorTest test;
  const CommandResult result = test.Doctor({"-H", "localhost:9999"});
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("warning localhost: CPUs: found "));
}

TEST_CASE("doctor reports an unknown host name and still checks the other hosts") {
  const DoctorTest test;
  const CommandResult result = test.Doctor({"-H", "localhost:1,nosuch.invalid:1"});
  CAPTURE(result.out);
  CHECK(result.exit_code == 69);
  CHECK_THAT(result.out, Contains("\nlocalhost       ok "));
  CHECK_THAT(result.out, Contains("PROBLEM nosuch.invalid: name: found nosuch.invalid: "));
}

TEST_CASE("doctor refuses an invalid command line in one line with exit code 2") {
  const DoctorTest test;
  for (const Words& line :
       {Words{"-np", "2"}, Words{"--bind", "core"}, Words{"--dry-run"}, Words{"--nosuch"},
        Words{"-H", "h:1:2"}, Words{"--hostfile", "/no/such/file"}}) {
    const CommandResult result = test.Doctor(line);
    CAPTURE(line, result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.out == "");
    CHECK(LineCount(result.err) == 1);
  }
  CHECK_THAT(test.Doctor({"--help"}).out, Contains("Usage: dtrun doctor [OPTIONS] [PROGRAM]"));
}

TEST_CASE("a program named doctor runs if doctor is not the first word") {
  DtrunTest test;
  test.folder = test.temp.path();
  test.temp.Write("doctor", "#!/bin/sh\necho the program\n", 0755);
  CHECK(test.Run({"-np", "1", "./doctor"}).out == "the program\n");
  test.environment = {{"PATH", test.temp.path() + ":/usr/bin:/bin"}};
  CHECK(test.Run({"-np", "1", "doctor"}).out == "the program\n");
}

TEST_CASE("dtrun_probe fails if it is started without a request") {
  const std::string probe = std::filesystem::path(DtrunTest::Dtrun()).parent_path() / "dtrun_probe";
  CHECK(Run({{probe}}).exit_code != 0);  // stdin is empty
}

}  // namespace
}  // namespace dtrun::testing
