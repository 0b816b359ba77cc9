// A rank with a GPU, as a process under dtrun. The first argument selects the action:
//
//   conform GPUS [all]   run the conformance suite on GPUS GPUs; rank 0 prints one line
//   disagree             call a different all_reduce on each rank; each rank prints its error

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "dtrun/error.h"
#include "gpu/stream.h"
#include "ops/communicator/communicator_base.h"
#include "runtime/job/job_context.h"
#include "tests/conformance/suite.h"
#include "tests/ops/cuda/device_ranks.h"

namespace {

using dtrun::testing::Findings;

int Conform(dtrun::ops::Communicator& world, int gpus, bool all) {
  const auto ranks = dtrun::testing::OverDevice(world, world.rank() % gpus);
  Findings findings;
  if (all) {
    dtrun::testing::CheckEveryKind(*ranks, findings);
    dtrun::testing::CheckMessages(*ranks, findings);
    dtrun::testing::CheckSubCommunicators(*ranks, findings);
  }
  dtrun::testing::CheckSameBits(*ranks, findings);
  dtrun::testing::CheckRandomOperations(*ranks, findings, 21, 200, true);
  for (const std::string& text : findings.texts) std::fprintf(stderr, "%s\n", text.c_str());
  uint64_t wrong = findings.wrong;
  world.AllReduce(dtrun::Buffer(&wrong, 1), dtrun::ReduceOp::kSum);
  if (world.rank() == 0)
    std::printf(
        "%s: %s checks, %d wrong\n", world.device_group(0).backend(),
        findings.checks > 100 ? "many" : "few", static_cast<int>(wrong));
  return wrong == 0 ? 0 : 1;
}

// Sums `count` floats over all ranks and waits for the sum.
void Sum(dtrun::ops::Communicator& world, uint64_t count) {
  const dtrun::gpu::Device& device = dtrun::gpu::Device::Get(0);
  const dtrun::gpu::Stream stream(device);
  const auto memory = world.AllocateOnDevice(0, 1 << 20);
  dtrun::Buffer buffer(memory->data(), count, dtrun::DType::kF32);
  buffer.device = 0;
  buffer.stream = stream.get();
  world.StartAllReduce(buffer, dtrun::ReduceOp::kSum);
  stream.Synchronize();
  world.CheckDevice();
}

int Disagree(dtrun::ops::Communicator& world) {
  Sum(world, 10);
  try {
    Sum(world, 10 + static_cast<uint64_t>(world.rank()));
  } catch (const dtrun::Error& error) {
    std::printf("%s\n", error.what());
    return 0;
  }
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto get = [](const std::string& name) -> std::optional<std::string> {
      const char* value = std::getenv(name.c_str());
      return value == nullptr ? std::nullopt : std::optional<std::string>(value);
    };
    dtrun::runtime::Context context(get, {});
    const std::string what = argv[1];
    int status = 0;
    if (what == "conform") {
      status = Conform(context.world(), std::atoi(argv[2]), argc > 3);
    } else {
      status = Disagree(context.world());
    }
    context.Shutdown();
    return status;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
}
