// What dtrun says before anything is started.

#include <catch2/catch.hpp>

#include "tests/launcher/process_test.h"

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

TEST_CASE("a usage error is one line and exit code 2") {
  const DtrunTest test;
  const Words line = GENERATE(
      Words{}, Words{"true"}, Words{"-np", "0", "true"}, Words{"-np", "a\nb", "true"},
      Words{"-np", "2"}, Words{"--nmp", "2", "true"},
      Words{"-np", "3", "-H", "localhost:2", "true"}, Words{"-H", "localhost:-2", "true"},
      Words{"-np", "1", "-x", "NOT_SET_ANYWHERE", "true"}, Words{"-H", "[fd00::1]:1", "true"},
      Words{"-np", "1", "--mpi-args", "'", "true"});
  CAPTURE(line);
  CheckOneLine(test.Run(line), 2);
}

TEST_CASE("a host that looks like an option or a command is only refused") {
  const DtrunTest test;
  CheckOneLine(
      test.Run({"-H", "-oProxyCommand=touch${IFS}" + test.temp.path() + "/x:1", "true"}), 2);
  CheckOneLine(test.Run({"-H", "a;touch " + test.temp.path() + "/x:1", "true"}), 2);
  CHECK(test.temp.Entries().empty());
}

TEST_CASE("help and version go to stdout") {
  const DtrunTest test;
  CHECK_THAT(test.Run({"--help"}).out, Contains("-np"));
  CHECK_THAT(test.Run({"--version"}).out, StartsWith("dtrun "));
  CHECK(test.Run({"--help"}).exit_code == 0);
  CHECK(test.Run({"--version"}).err.empty());
}

TEST_CASE("a program that is not there is named, exit code 127") {
  DtrunTest test;
  const CommandResult result = test.Run({"-np", "2", "no_such_program"});
  CheckOneLine(result, 127);
  CHECK_THAT(result.err, Contains("no_such_program"));
  CheckOneLine(test.Run({"-np", "2", "./no/such/program"}), 127);
}

TEST_CASE("a bare name of a program in this folder is answered with how to type it") {
  DtrunTest test;
  test.temp.Write("local_program", "#!/bin/sh\n", 0755);
  test.folder = test.temp.path();
  test.environment = {{"PATH", "/usr/bin:/bin"}};
  const CommandResult result = test.Run({"-np", "2", "local_program"});
  CheckOneLine(result, 127);
  CHECK_THAT(result.err, Contains("./local_program"));
}

TEST_CASE("a program that cannot be run is named, exit code 126") {
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

TEST_CASE("without mpirun dtrun says what to install, exit code 69") {
  DtrunTest test;
  test.environment = {{"PATH", "/nonexistent"}};
  const CommandResult result = test.Run({"-np", "1", "/bin/true"});
  CheckOneLine(result, 69);
  CHECK_THAT(result.err, Contains("openmpi-bin"));
}

TEST_CASE("an mpirun of another MPI is named, exit code 69") {
  DtrunTest test;
  test.temp.Write("mpirun", "#!/bin/sh\necho 'HYDRA build details:'\n", 0755);
  test.environment = {{"PATH", test.temp.path() + ":/usr/bin:/bin"}};
  const CommandResult result = test.Run({"-np", "1", "/bin/true"});
  CheckOneLine(result, 69);
  CHECK_THAT(result.err, Contains("HYDRA build details:"));
}

TEST_CASE("--dry-run shows the command and where the ranks go, and starts nothing") {
  const DtrunTest test;
  const CommandResult result = test.Run(
      {"--dry-run", "-np", "3", "-H", "localhost:2,far.example.org:2", "-x", "PATH", "touch",
       test.temp.path() + "/a b"});
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  CHECK(LineCount(result.out) == 4);
  CHECK_THAT(
      result.out, Contains("-H localhost,localhost,far.example.org") && Contains("-x PATH") &&
                      Contains("'+" + test.temp.path() + "/a b'") &&
                      Contains("\nrank 1 -> localhost\nrank 2 -> far.example.org\n"));
  CHECK(test.temp.Entries().empty());
}

TEST_CASE("--verbose shows the command before it starts") {
  const DtrunTest test;
  const CommandResult result = test.Run({"--verbose", "-np", "1", "echo", "hi"});
  CHECK(result.exit_code == 0);
  CHECK(result.out == "hi\n");
  CHECK_THAT(result.err, StartsWith("dtrun: ") && Contains("mpirun -np 1"));
}

}  // namespace
}  // namespace dtrun::testing
