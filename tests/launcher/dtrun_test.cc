// What a rank finds when dtrun has started it.

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <optional>
#include <thread>

#include "base/launch_env.h"
#include "base/text.h"
#include "tests/launcher/process_test.h"

namespace dtrun::testing {
namespace {

std::map<std::string, std::string> ReadEnvironment(const std::string& text) {
  std::map<std::string, std::string> environment;
  for (const std::string& line : base::Split(text, '\n'))
    environment[line.substr(0, line.find('='))] =
        line.substr(std::min(line.size(), line.find('=') + 1));
  return environment;
}

TEST_CASE("every rank runs, and nothing else is printed") {
  const DtrunTest test;
  const CommandResult result = test.RunScript(2, "echo rank $OMPI_COMM_WORLD_RANK");
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  CHECK(LineCount(result.out) == 2);
  CHECK_THAT(result.out, Catch::Contains("rank 0\n") && Catch::Contains("rank 1\n"));
}

TEST_CASE("more ranks than CPUs run, and more than mpirun starts without threads of its own") {
  const DtrunTest test;
  const CommandResult result = test.RunScript(40, "sleep 0.3; echo x");
  CHECK(result.exit_code == 0);
  CHECK(LineCount(result.out) == 40);
  CHECK(result.err.empty());
}

TEST_CASE("arguments reach the program byte for byte") {
  const DtrunTest test;
  const Words arguments = {"",   "a b",    "$(id)", "x'y\"z", "n\nl",   "*",        "--",
                           ":",  "-np",    "9",     "-x",     "--tune", "nothing",  "-am",
                           "no", "--help", "-H",    "h:1",    "+",      "\xff\x01", "\\"};
  Words line = {"-np", "1", "sh", "-c", "for a in \"$@\"; do printf '<%s>' \"$a\"; done", "sh"};
  line.insert(line.end(), arguments.begin(), arguments.end());
  std::string expected;
  for (const std::string& argument : arguments) expected += "<" + argument + ">";
  const CommandResult result = test.Run(line);
  CHECK(result.out == expected);
  CHECK(result.err.empty());
}

TEST_CASE("a script and a program named by its path are run") {
  DtrunTest test;
  const std::string script = test.temp.Write("a script.sh", "#!/bin/sh\necho \"$0 $1\"\n", 0755);
  CHECK(test.Run({"-np", "1", script, "x"}).out == script + " x\n");
  test.folder = test.temp.path();
  CHECK(test.Run({"-np", "1", "./a script.sh", "x"}).out == "./a script.sh x\n");
}

TEST_CASE("stdin of the ranks is empty") {
  const DtrunTest test;
  CHECK(test.RunScript(2, "cat; echo end").out == "end\nend\n");
}

TEST_CASE("a rank is told the job, the hosts and its threads") {
  const DtrunTest test;
  const auto environment = ReadEnvironment(test.Run({"-np", "1", "env"}).out);
  const auto launch = base::ReadLaunchEnv([&](const std::string& name) {
    const auto variable = environment.find(name);
    return variable == environment.end() ? std::nullopt : std::optional(variable->second);
  });
  REQUIRE(launch);
  CHECK(launch->job.size() == 32);
  CHECK_FALSE(launch->version.empty());
  CHECK(launch->hosts == std::vector<base::HostSlots>{{"localhost", 1}});
  CHECK(launch->terminal_columns == 0);
  CHECK(launch->threads >= 1);
  CHECK(environment.at("OMP_NUM_THREADS") == base::Text(launch->threads));
}

TEST_CASE("two jobs have different names") {
  const DtrunTest test;
  const std::string first = test.RunScript(1, "echo $DTRUN_JOB").out;
  CHECK(first != test.RunScript(1, "echo $DTRUN_JOB").out);
}

TEST_CASE("a user's OMP_NUM_THREADS is also the number of threads of dtrun") {
  DtrunTest test;
  test.environment = {{"OMP_NUM_THREADS", "5,2"}};
  CHECK(test.RunScript(1, "echo $OMP_NUM_THREADS $DTRUN_THREADS").out == "5,2 5\n");
}

TEST_CASE("ranks that take turns on a CPU have one thread and all CPUs, and yield") {
  const DtrunTest test;
  const int ranks = static_cast<int>(std::thread::hardware_concurrency()) + 1;
  const CommandResult result = test.RunScript(
      ranks,
      "echo $DTRUN_THREADS $OMPI_MCA_mpi_yield_when_idle $(grep Cpus_allowed: /proc/self/status)");
  const std::string line = result.out.substr(0, result.out.find('\n') + 1);
  CHECK_THAT(line, Catch::StartsWith("1 1 "));
  std::string all;
  for (int rank = 0; rank < ranks; ++rank) all += line;
  CHECK(result.out == all);
}

TEST_CASE("ranks that fit on their host have CPUs of their own") {
  const DtrunTest test;
  if (test.RunScript(1, "echo $DTRUN_THREADS").out == "1\n") return;  // one CPU
  const Words lines =
      base::Split(test.RunScript(2, "grep Cpus_allowed: /proc/self/status").out, '\n');
  REQUIRE(lines.size() == 3);
  CHECK(lines[0] != lines[1]);
}

TEST_CASE("several names of this machine are several hosts of the job") {
  const DtrunTest test;
  const CommandResult result =
      test.Run({"-H", "localhost:1,127.0.0.1:2", "sh", "-c", "echo $DTRUN_HOSTS"});
  CHECK(result.exit_code == 0);
  CHECK(LineCount(result.out) == 3);
  CHECK_THAT(result.out, Catch::StartsWith("localhost:1,127.0.0.1:2\n"));
}

TEST_CASE("a host that stands before this machine has the first rank") {
  DtrunTest test;
  // In place of ssh: another host name on this machine. Where that is not allowed, there is no
  // test.
  if (Run({{"unshare", "-u", "true"}}).exit_code != 0) return;
  test.temp.Write(
      "ssh",
      "#!/bin/bash\n"
      "while [[ $1 == -* ]]; do case $1 in -o) shift 2 ;; --) shift; break ;; *) shift ;; esac; "
      "done\n"
      "exec env -u MARK -u SOME_TOKEN unshare -u sh -c 'hostname \"$0\"; exec sh -c \"$1\"' \"$1\" "
      "\"${*:2}\"\n",
      0755);
  test.environment = {
      {"MARK", "a b"},
      {"SOME_TOKEN", "secret"},
      {"PATH", test.temp.path() + ":" + std::getenv("PATH")}};
  const CommandResult result = test.Run(
      {"-H", "h1.example.org:2,localhost:1", "sh", "-c",
       "echo $OMPI_COMM_WORLD_RANK $(hostname) \"$MARK\" $SOME_TOKEN", "sh", "a 'b'"});
  CHECK(result.err.empty());
  CHECK_THAT(
      result.out, Catch::Contains("0 h1.example.org a b\n") &&
                      Catch::Contains("1 h1.example.org a b\n") && Catch::Contains("2 "));
}

TEST_CASE("no ssh is needed on one host") {
  DtrunTest test;
  const std::string mpirun = base::Split(Run({{"which", "mpirun"}}).out, '\n')[0];
  std::filesystem::create_symlink(mpirun, test.temp.path() + "/mpirun");
  test.environment = {{"PATH", test.temp.path()}};
  CHECK(test.Run({"-np", "1", "/bin/echo", "hi"}).out == "hi\n");
}

TEST_CASE("runs leave nothing in the temporary folder") {
  const DtrunTest test;
  CHECK(test.RunScript(2, "ls -d $TMPDIR/dtrun.*").exit_code == 0);  // there is one meanwhile
  CHECK(test.RunScript(2, "exit 1").exit_code == 1);
  CHECK(test.temp.Entries().empty());
}

}  // namespace
}  // namespace dtrun::testing
