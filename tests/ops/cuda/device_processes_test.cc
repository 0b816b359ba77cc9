// Collectives on GPUs between processes, which map each other's memory.

#include <catch2/catch.hpp>
#include <string>

#include "tests/support/subprocess.h"

namespace {

using dtrun::testing::Command;
using dtrun::testing::CommandResult;

CommandResult Launch(
    const std::string& np, std::vector<std::string> words, const std::string& ipc = "1",
    const std::string& mps = "1") {
  words.insert(
      words.begin(), {"launcher/dtrun", "--launcher", "local", "--oversubscribe", "--tag", "none",
                      "-np", np, "tests/ops/cuda/device_rank"});
  return Run(Command{
      .argv = words,
      .environment =
          {{"DTRUN_TIMEOUT_S", "30"}, {"DTRUN_SIMULATED_IPC", ipc}, {"DTRUN_SIMULATED_MPS", mps}},
      .timeout = std::chrono::seconds(120)});
}

TEST_CASE("processes on one GPU pass the conformance suite") {
  const CommandResult result = Launch("2", {"conform", "1", "all"});
  CHECK(result.err == "");
  CHECK(result.out == "cuda_ipc: many checks, 0 wrong\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("more processes than GPUs pass the conformance suite") {
  const CommandResult result = Launch("4", {"conform", "2"});
  CHECK(result.err == "");
  CHECK(result.out == "cuda_ipc: many checks, 0 wrong\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("processes that cannot map each other's memory go through the host after one warning") {
  const CommandResult result = Launch("2", {"conform", "1"}, "0");
  CHECK(
      result.err ==
      "dtrun: rank 0: warning: the GPU backend cuda_ipc fails: rank 0: "
      "cuMemImportFromShareableHandle failed: CUDA_ERROR_INVALID_CONTEXT (said by the simulated "
      "driver); dtrun takes the next one\n");
  CHECK(result.out == "host_staged: many checks, 0 wrong\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("processes that share a GPU without MPS go through the host") {
  const CommandResult result = Launch("2", {"conform", "1"}, "1", "0");
  CHECK(result.err == "");
  CHECK(result.out == "host_staged: many checks, 0 wrong\n");
  CHECK(result.exit_code == 0);
}

TEST_CASE("processes with different calls all get an error with the call of each rank") {
  const CommandResult result = Launch("2", {"disagree"});
  const std::string line =
      "the ranks disagree on a collective on GPUs: rank 0 called all_reduce (f32, 10 elements, "
      "sum); rank 1 called all_reduce (f32, 11 elements, sum)\n";
  CHECK(result.out == line + line);
  CHECK(result.err == "");
  CHECK(result.exit_code == 0);
}

}  // namespace
