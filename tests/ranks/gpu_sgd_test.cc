// DistributedOptimizer on GPUs, or on simulated ones, in processes.

#include <catch2/catch.hpp>
#include <string>

#include "tests/support/subprocess.h"

namespace {

using dtrun::testing::Command;
using dtrun::testing::CommandResult;
using dtrun::testing::Run;

TEST_CASE("parameters on GPUs are trained as one, whatever reduces") {
  const std::string backend = GENERATE("cuda_ipc", "nccl", "hierarchical");
  const CommandResult result = Run(Command{
      .argv = {
          "launcher/dtrun", "--launcher", "local", "--tag", "none", "--device-backend", backend,
          "-np", "2", "tests/ranks/gpu_sgd"}});
  CAPTURE(backend, result.err);
  // Averages 0.5, 1.5, 2.5, and 3.5 of both, or 3 of rank 0 and nothing of rank 1, steps of 0.5.
  CHECK_THAT(result.out, Catch::Contains("rank 0: 0 0.75 -1\n"));
  CHECK_THAT(result.out, Catch::Contains("rank 1: 0 0.75 -1\n"));
  CHECK_THAT(
      result.out, Catch::Contains("DistributedOptimizer: parameter 'p0' lies on GPU 0; "
                                  "max_gradient_norm is for parameters in host memory\n"));
  // NCCL treats all memory alike.
  const std::string refusal =
      backend == "nccl" ? "" : "; rank 0: register: 4 bytes at 0 do not lie on a GPU; expected ";
  for (const char* rank : {"rank 0", "rank 1"})
    CHECK_THAT(result.out, Catch::Contains(std::string(rank) + ": sums 2 4 8" + refusal));
  CHECK_THAT(result.out, Catch::Contains("devices: cpu cuda:0"));
  CHECK_THAT(result.out, !Catch::Contains("not what the driver says"));
  CHECK_THAT(result.out, Catch::Contains("there is no GPU 99; expected a number from 0 to "));
  CHECK(result.exit_code == 0);
}

TEST_CASE("a memory limit of a GPU is told with what is needed") {
  const CommandResult result = Run(Command{
      .argv = {
          "launcher/dtrun", "--launcher", "local", "--tag", "none", "--gpu-memory", "1000000",
          "-np", "2", "tests/ranks/gpu_sgd"}});
  CAPTURE(result.out);
  CHECK_THAT(result.err, Catch::Contains("has no room for"));
  CHECK(result.exit_code != 0);
}

}  // namespace
