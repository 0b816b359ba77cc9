// The conformance suite in processes that dtrun starts.

#include <catch2/catch.hpp>
#include <string>

#include "tests/support/subprocess.h"

namespace {

using dtrun::testing::Command;
using dtrun::testing::CommandResult;
using dtrun::testing::Run;

void Conforms(const std::string& backend, const std::string& np) {
  const CommandResult result = Run(Command{
      .argv = {"launcher/dtrun", "--tag", "none", "-np", np, "tests/ranks/conformance"},
      .environment = {{"DTRUN_BACKEND", backend}, {"DTRUN_TIMEOUT_S", "30"}},
      .timeout = std::chrono::seconds(240)});
  CHECK(result.err == "");
  CHECK(result.out == backend + ": many checks, 0 wrong\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("the shm backend conforms between processes", "[shm]") {
  Conforms("shm", GENERATE("2", "3", "4", "8"));
}

TEST_CASE("the hierarchical backend conforms between processes", "[hierarchical]") {
  Conforms("hierarchical", GENERATE("2", "3", "4", "8"));
}

TEST_CASE("the mpi backend conforms between processes", "[mpi]") {
  Conforms("mpi", GENERATE("2", "3", "4", "8"));
}

TEST_CASE("ranks with --reduce-isa baseline conform", "[shm]") {
  // tests/ops/instruction_set_test.cc tests an instruction set that the CPU lacks.
  const CommandResult result = Run(Command{
      .argv =
          {"launcher/dtrun", "--reduce-isa", "baseline", "--tag", "none", "-np", "2",
           "tests/ranks/conformance", "core"},
      .environment = {{"DTRUN_TIMEOUT_S", "30"}},
      .timeout = std::chrono::seconds(240)});
  CHECK(result.err == "");
  CHECK(result.out == "shm: many checks, 0 wrong\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("64 ranks conform under mpirun and under the local launcher", "[many]") {
  const std::string launcher = GENERATE("mpirun", "local");
  const CommandResult result = Run(Command{
      .argv =
          {"launcher/dtrun", "--launcher", launcher, "--oversubscribe", "--tag", "none", "-np",
           "64", "tests/ranks/conformance", "core"},
      .environment = {{"DTRUN_TIMEOUT_S", "60"}},
      // The ranks take turns on the cores: minutes on a machine with two, and more beside others.
      .timeout = std::chrono::minutes(20)});
  CHECK(result.err == "");
  CHECK(result.out == "shm: many checks, 0 wrong\n");
  CHECK(result.exit_code == 0);
}

}  // namespace
