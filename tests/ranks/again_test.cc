// Init after Shutdown.

#include <catch2/catch.hpp>
#include <string>

#include "tests/ranks/dtrun_job.h"
#include "tests/support/subprocess.h"

namespace {

using dtrun::testing::Command;
using dtrun::testing::CommandResult;
using dtrun::testing::Run;
using dtrun::testing::RunJob;

CommandResult JobAgain(const std::string& launcher) {
  return RunJob({"--launcher", launcher, "-np", "3", "tests/ranks/again"});
}

TEST_CASE("ranks can call Init again after Shutdown") {
  const std::string launcher = GENERATE("local", "mpirun");
  const CommandResult result = JobAgain(launcher);
  CAPTURE(launcher, result.err);
  CHECK(result.err == "");
  CHECK(result.out == "1: 3 ranks, 3 and 3\n2: 3 ranks, 3 and 3\n3: 3 ranks, 3 and 3\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("under plain mpirun ranks can call Init again and mpirun reports no error") {
  const CommandResult result = Run(Command{
      .argv = {
          "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "3", "tests/ranks/again"}});
  CHECK(result.out == "1: 3 ranks, 3 and 3\n2: 3 ranks, 3 and 3\n3: 3 ranks, 3 and 3\n");
  CHECK(result.err == "");
  CHECK(result.exit_code == 0);
}

TEST_CASE("a process without a launcher can call Init again after Shutdown") {
  const CommandResult result = Run(Command{.argv = {"tests/ranks/again"}});
  CHECK(result.out == "1: 1 ranks, 1 and 1\n2: 1 ranks, 1 and 1\n3: 1 ranks, 1 and 1\n");
}

}  // namespace
