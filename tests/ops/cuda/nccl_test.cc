// The NCCL backend. Ranks are threads of one process, each with its own GPU.

#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "dtrun/error.h"
#include "gpu/memory.h"
#include "gpu/stream.h"
#include "ops/nccl/nccl_group.h"
#include "tests/conformance/suite.h"
#include "tests/gpu_simulator/graph.h"
#include "tests/ops/cuda/device_job.h"
#include "tests/ops/cuda/device_ranks.h"

namespace dtrun::testing {
namespace {

using Texts = std::vector<std::string>;

Texts RunNccl(
    int size, const std::function<void(ops::Communicator&)>& rank_main,
    base::Duration timeout = std::chrono::seconds(20)) {
  if (gpu::DeviceCount() < size) {
    WARN("SKIPPED: there are fewer than " << size << " GPUs");
    return Texts(static_cast<size_t>(size));
  }
  return RunDeviceRanks(
      size,
      [&](ops::Communicator& communicator) {
        communicator.UseDevices(ops::DeviceBackends({.backend = "nccl"}));
        rank_main(communicator);
      },
      timeout);
}

void Conforms(int size, const std::function<void(Ranks&, Findings&)>& check) {
  INFO(size << " ranks");
  std::vector<Findings> findings(static_cast<size_t>(size));
  const Texts errors = RunNccl(size, [&](ops::Communicator& communicator) {
    check(
        *OverDevice(communicator, communicator.rank()),
        findings[static_cast<size_t>(communicator.rank())]);
    if (std::string(communicator.device_group(communicator.rank()).backend()) != "nccl")
      throw std::runtime_error("another backend");
  });
  CHECK(errors == Texts(static_cast<size_t>(size)));
  if (gpu::DeviceCount() < size) return;
  for (const Findings& found : findings) {
    CHECK(found.checks > 0);
    CHECK(found.texts == Texts());
  }
}

TEST_CASE("every kind gives the promised values over NCCL") {
  Conforms(GENERATE(1, 2, 4), CheckEveryKindIfFull);
}

TEST_CASE("random operations in flight at once give the promised values over NCCL") {
  Conforms(GENERATE(1, 2, 3, 4), [](Ranks& ranks, Findings& findings) {
    CheckRandomOperations(ranks, findings, 17, 300, false);
  });
}

TEST_CASE("communicators of fewer ranks and duplicates work over NCCL") {
  Conforms(4, CheckSubCommunicators);
}

// A rank's stream and a buffer on its GPU.
struct NcclGpu {
  explicit NcclGpu(int index)
      : device(gpu::Device::Get(index)), stream(device), memory(device, 4096) {}
  Buffer floats(uint64_t count) const {
    Buffer buffer(memory.as<void>(), count, DType::kF32);
    buffer.device = device.index();
    buffer.stream = stream.get();
    return buffer;
  }
  void Write(const std::vector<float>& values) const {
    const gpu::DeviceScope scope(device);
    gpu::CopyToDevice(memory.address(), values.data(), values.size() * 4, stream.get());
    stream.Synchronize();
  }
  float Read() const {
    float value = 0;
    const gpu::DeviceScope scope(device);
    gpu::CopyToHost(&value, memory.address(), 4, stream.get());
    stream.Synchronize();
    return value;
  }

  const gpu::Device& device;
  gpu::Stream stream;
  gpu::DeviceMemory memory;
};

TEST_CASE("a collective over NCCL captured into a graph runs once per launch of the graph") {
  CHECK(RunNccl(2, [](ops::Communicator& communicator) {
          const NcclGpu gpu(communicator.rank());
          gpu.Write({static_cast<float>(communicator.rank() + 1)});
          communicator.StartAllReduce(gpu.floats(1), ReduceOp::kMax);  // makes the group
          gpu.Write({static_cast<float>(communicator.rank() + 1)});
          const gpu::Graph graph(
              gpu.stream, [&] { communicator.StartAllReduce(gpu.floats(1), ReduceOp::kSum); });
          if (gpu.Read() != static_cast<float>(communicator.rank() + 1))
            throw std::runtime_error("it has been done already");
          for (int i = 0; i < 3; ++i) graph.Launch(gpu.stream.get());
          if (gpu.Read() != 12) throw std::runtime_error("3 + 3, 6 + 6 is 12");
          communicator.CheckDevice();
        }) == Texts(2));
}

TEST_CASE("a call that one rank does not make and all later calls time out over NCCL") {
  const Texts texts = RunNccl(
      2,
      [](ops::Communicator& communicator) {
        const NcclGpu gpu(communicator.rank());
        communicator.StartAllReduce(gpu.floats(8), ReduceOp::kSum);
        gpu.stream.Synchronize();
        if (communicator.rank() == 1) return;
        communicator.StartAllReduce(gpu.floats(8), ReduceOp::kSum);
        try {
          gpu.stream.Synchronize();
        } catch (const Error&) {
          // A driver may report an error if kernels were ended.
        }
        try {
          communicator.CheckDevice();
        } catch (const Error& error) {
          if (error.code() != ErrorCode::kTimeout) throw;
          communicator.StartAllReduce(gpu.floats(8), ReduceOp::kSum);
        }
      },
      std::chrono::seconds(1));
  if (gpu::DeviceCount() < 2) return;
  CHECK(texts[1] == "");
  CHECK(
      texts[0] ==
      "collective #2, all_reduce (f32, 8 elements, sum) of world is not done on GPU 0 after 1 s: a "
      "rank has not called the operation, or has called another operation");
}

TEST_CASE("the probe of NCCL names the ranks that share a GPU") {
  const Texts texts = RunDeviceRanks(3, [](ops::Communicator& communicator) {
    const int device = communicator.rank() == 1 ? 1 % gpu::DeviceCount() : 0;
    throw std::runtime_error(ops::ProbeNccl(communicator, gpu::Device::Get(device)));
  });
  if (gpu::DeviceCount() < 2) return;
  for (const std::string& text : texts)
    CHECK(text == "ranks 0 and 2 use one GPU, " + gpu::Device::Get(0).bus_id());
}

}  // namespace
}  // namespace dtrun::testing
