// DistributedOptimizer in processes on real or simulated GPUs.

#include <catch2/catch.hpp>
#include <string>

#include "tests/support/subprocess.h"

namespace {

using dtrun::testing::Command;
using dtrun::testing::CommandResult;
using dtrun::testing::Run;

TEST_CASE("ranks agree on GPU parameters with cuda_ipc or nccl or hierarchical") {
  const std::string backend = GENERATE("cuda_ipc", "nccl", "hierarchical");
  const CommandResult result = Run(Command{
      .argv = {
          "launcher/dtrun", "--launcher", "local", "--tag", "none", "--device-backend", backend,
          "-np", "2", "tests/ranks/gpu_sgd"}});
  CAPTURE(backend, result.err);
  // The rate is 0.5. The average gradients are 0.5, 1.5 and 2.5. In the last step they are 1.5 for
  // p0 and 3.5 for p2.
  CHECK_THAT(result.out, Catch::Contains("rank 0: 0 0.75 -1\n"));
  CHECK_THAT(result.out, Catch::Contains("rank 1: 0 0.75 -1\n"));
  for (const char* rank : {"rank 0", "rank 1"})
    CHECK_THAT(result.out, Catch::Contains(std::string(rank) + ": sums 2 4 8\n"));
  CHECK_THAT(result.out, Catch::Contains("devices: cpu cuda:0"));
  CHECK_THAT(result.out, !Catch::Contains("not what the driver says"));
  CHECK_THAT(result.out, Catch::Contains("there is no GPU 99; expected a number from 0 to "));
  CHECK(result.exit_code == 0);
}

TEST_CASE("a --gpu-memory limit that is too small ends the job with an error") {
  const CommandResult result = Run(Command{
      .argv = {
          "launcher/dtrun", "--launcher", "local", "--tag", "none", "--gpu-memory", "1000000",
          "-np", "2", "tests/ranks/gpu_sgd"}});
  CAPTURE(result.out);
  CHECK_THAT(result.err, Catch::Contains("has no room for"));
  CHECK(result.exit_code != 0);
}

}  // namespace
