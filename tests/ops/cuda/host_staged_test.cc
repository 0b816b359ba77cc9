// The host_staged backend, for ranks that no other GPU backend serves: conformance, messages and
// refused calls.

#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "dtrun/error.h"
#include "gpu/gpu_device.h"
#include "gpu/memory.h"
#include "gpu/stream.h"
#include "ops/cuda/host_staged_group.h"
#include "tests/conformance/suite.h"
#include "tests/gpu_simulator/graph.h"
#include "tests/ops/cuda/device_job.h"
#include "tests/ops/cuda/device_ranks.h"

namespace dtrun::testing {
namespace {

std::vector<std::string> RunStaged(
    int size, const std::function<void(ops::Communicator&)>& rank_main,
    base::Duration timeout = std::chrono::seconds(20)) {
  return RunDeviceRanks(size, rank_main, timeout, "host_staged");
}

// Sets the chunk size. With small chunks, little data fills many chunks.
void UseSmallChunks(ops::Communicator& communicator, uint64_t chunk_bytes) {
  communicator.UseDevices([chunk_bytes](ops::Communicator& host, int index) {
    return ops::cuda::CreateHostStagedGroup(host, gpu::Device::Get(index), chunk_bytes);
  });
}

void ConformsStaged(
    int size, const std::function<void(Ranks&, Findings&)>& check,
    uint64_t chunk_bytes = ops::cuda::kStagedChunkBytes) {
  std::vector<Findings> findings(static_cast<size_t>(size));
  const auto errors = RunStaged(size, [&](ops::Communicator& communicator) {
    UseSmallChunks(communicator, chunk_bytes);
    const auto ranks = OverDevice(communicator, 0);
    check(*ranks, findings[static_cast<size_t>(communicator.rank())]);
  });
  CHECK(errors == std::vector<std::string>(static_cast<size_t>(size)));
  for (const Findings& found : findings) {
    CHECK(found.checks > 0);
    CHECK(found.texts == std::vector<std::string>());
  }
}

TEST_CASE("every kind gives the promised bits over host_staged") {
  ConformsStaged(2, CheckEveryKindIfFull);
}

TEST_CASE("random operations give the promised bits over host_staged") {
  for (const int size : {1, 3, 4}) {
    ConformsStaged(size, [](Ranks& ranks, Findings& findings) {
      CheckRandomOperations(ranks, findings, 31, 200, true);
    });
  }
}

TEST_CASE("every kind gives the promised bits over host_staged in small chunks") {
  ConformsStaged(2, CheckEveryKindIfFull, 1024);
}

TEST_CASE("random operations and sums with rounding have the same bits in chunks and as a whole") {
  for (const int size : {1, 2, 4}) {
    ConformsStaged(
        size,
        [](Ranks& ranks, Findings& findings) {
          CheckRandomOperations(ranks, findings, 37, 200, true);
          CheckSameBits(ranks, findings);
        },
        1000);
  }
}

// A stream, and GPU memory for `count` floats.
struct GpuMemory {
  GpuMemory(ops::Communicator& communicator, uint64_t count_in)
      : stream(gpu::Device::Get(0)),
        memory(communicator.AllocateOnDevice(0, count_in * 4)),
        count(count_in) {}
  Buffer floats(uint64_t n) const {
    Buffer buffer(memory->data(), n, DType::kF32);
    buffer.device = 0;
    buffer.stream = stream.get();
    return buffer;
  }
  void Write(const std::vector<float>& values) const {
    gpu::CopyToDevice(
        gpu::AddressOf(memory->data()), values.data(), values.size() * 4, stream.get());
    stream.Synchronize();
  }
  std::vector<float> Read() const {
    std::vector<float> values(count);
    gpu::CopyToHost(values.data(), gpu::AddressOf(memory->data()), count * 4, stream.get());
    stream.Synchronize();
    return values;
  }

  gpu::Stream stream;
  std::unique_ptr<ops::Memory> memory;
  uint64_t count;
};

TEST_CASE("calls in chunks and as a whole and from other streams run in the order of the calls") {
  constexpr uint64_t kCount = 10'000;
  const auto errors = RunStaged(2, [](ops::Communicator& communicator) {
    UseSmallChunks(communicator, 4096);
    const gpu::DeviceScope scope(gpu::Device::Get(0));
    const GpuMemory gpu(communicator, kCount);
    const gpu::Stream other(gpu::Device::Get(0));
    gpu.Write(std::vector<float>(kCount, 1));
    for (int i = 0; i < 3; ++i) {
      Buffer buffer = gpu.floats(kCount);
      communicator.StartAllReduce(buffer, ReduceOp::kSum);
      buffer.stream = other.get();
      communicator.StartAllReduce(buffer, ReduceOp::kSum);
      communicator.StartAllReduce(buffer.Slice(0, 10), ReduceOp::kAverage);  // in one piece
    }
    communicator.StartBroadcast(gpu.floats(kCount), 1);
    if (gpu.Read() != std::vector<float>(kCount, 64)) throw std::runtime_error("another result");
  });
  CHECK(errors == std::vector<std::string>(2));
}

TEST_CASE("ranks with different counts in chunks get an error with each call and can go on") {
  constexpr uint64_t kCount = 10'000;
  // Many chunks on all ranks, or one chunk on rank 1 and many on the others.
  const uint64_t fewer = GENERATE(9'999, 10);
  const auto errors = RunStaged(3, [&](ops::Communicator& communicator) {
    UseSmallChunks(communicator, 4096);
    const gpu::DeviceScope scope(gpu::Device::Get(0));
    const GpuMemory gpu(communicator, kCount);
    gpu.Write(std::vector<float>(kCount, 1));
    std::string heard;
    try {
      communicator.StartAllReduce(
          gpu.floats(communicator.rank() == 1 ? fewer : kCount), ReduceOp::kSum);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kMismatch) throw;
      heard = error.what();
    }
    if (gpu.Read() != std::vector<float>(kCount, 1))
      throw std::runtime_error("something has been written");
    communicator.StartAllReduce(gpu.floats(kCount), ReduceOp::kSum);
    if (gpu.Read() != std::vector<float>(kCount, 3)) throw std::runtime_error("not usable");
    throw std::runtime_error(heard);
  });
  const std::string expected =
      "rank 1 called all_reduce (f32, " + std::to_string(fewer) + " elements, sum)";
  for (const std::string& error : errors) {
    CHECK_THAT(
        error, Catch::StartsWith("the ranks disagree on a collective on GPUs: ") &&
                   Catch::Contains("ranks 0 and 2 called all_reduce (f32, 10000 elements, sum)") &&
                   Catch::Contains(expected));
  }
}

TEST_CASE("a call in chunks times out on the other ranks if a rank does not call it") {
  const auto errors = RunStaged(
      3,
      [](ops::Communicator& communicator) {
        UseSmallChunks(communicator, 4096);
        const GpuMemory gpu(communicator, 10'000);
        communicator.StartAllReduce(gpu.floats(10'000), ReduceOp::kSum);
        if (communicator.rank() == 2) return;
        try {
          communicator.StartAllReduce(gpu.floats(10'000), ReduceOp::kSum);
        } catch (const Error& error) {
          if (error.code() == ErrorCode::kTimeout) throw std::runtime_error("timeout");
          throw;
        }
      },
      std::chrono::seconds(1));
  CHECK(errors == std::vector<std::string>{"timeout", "timeout", ""});
}

TEST_CASE("a send over host_staged does not wait for the receiver") {
  const auto errors = RunStaged(2, [](ops::Communicator& communicator) {
    const gpu::Device& device = gpu::Device::Get(0);
    const gpu::DeviceScope scope(device);
    const gpu::Stream stream(device);
    const auto memory = communicator.AllocateOnDevice(0, 4096);
    Buffer buffer(memory->data(), 10, DType::kF32);
    buffer.device = 0;
    buffer.stream = stream.get();
    std::vector<float> values(10, static_cast<float>(communicator.rank() + 1));
    gpu::CopyToDevice(gpu::AddressOf(memory->data()), values.data(), 40, stream.get());
    // Both ranks send before they receive.
    const int peer = 1 - communicator.rank();
    communicator.StartSend(buffer, peer);
    communicator.StartReceive(buffer, peer);
    gpu::CopyToHost(values.data(), gpu::AddressOf(memory->data()), 40, stream.get());
    stream.Synchronize();
    if (values != std::vector<float>(10, static_cast<float>(peer + 1)))
      throw std::runtime_error("another message has come");
  });
  CHECK(errors == std::vector<std::string>(2));
}

TEST_CASE("a send that fails over host_staged is an error of one later call only") {
  const auto errors = RunStaged(2, [](ops::Communicator& communicator) {
    const gpu::Stream stream(gpu::Device::Get(0));
    const auto memory = communicator.AllocateOnDevice(0, 4096);
    Buffer buffer(memory->data(), 10, DType::kF32);
    buffer.device = 0;
    buffer.stream = stream.get();
    const auto refusal = [](const std::function<void()>& call) {
      try {
        call();
      } catch (const Error& error) {
        return std::string(error.what());
      }
      return std::string("no error");
    };
    std::string found;
    if (communicator.rank() == 1)
      found = refusal([&] { communicator.StartReceive(buffer.Slice(0, 5), 0); });
    if (communicator.rank() == 0) communicator.StartSend(buffer, 1);
    for (int i = 0; i < 2; ++i) communicator.Barrier();  // until the send has ended, too
    if (communicator.rank() == 0)
      found = refusal([&] { communicator.StartAllReduce(buffer, ReduceOp::kSum); });
    if (found.find("sends 10 elements of f32") == std::string::npos)
      throw std::runtime_error(found);
    communicator.StartAllReduce(buffer, ReduceOp::kSum);
    stream.Synchronize();
  });
  CHECK(errors == std::vector<std::string>(2));
}

TEST_CASE("a collective over host_staged cannot be captured into a graph") {
  const auto errors = RunStaged(2, [](ops::Communicator& communicator) {
    const gpu::Device& device = gpu::Device::Get(0);
    const gpu::Stream stream(device);
    const auto memory = communicator.AllocateOnDevice(0, 4096);
    Buffer buffer(memory->data(), 10, DType::kF32);
    buffer.device = 0;
    buffer.stream = stream.get();
    const gpu::Graph graph(stream, [&] { communicator.StartAllReduce(buffer, ReduceOp::kSum); });
  });
  CHECK(
      errors == std::vector<std::string>(
                    2,
                    "all_reduce: the stream is being captured into a graph, of which "
                    "host_staged cannot be a part"));
}

TEST_CASE("ranks with different calls over host_staged get an error with the call of each rank") {
  const auto errors = RunStaged(2, [](ops::Communicator& communicator) {
    const gpu::Stream stream(gpu::Device::Get(0));
    const auto memory = communicator.AllocateOnDevice(0, 4096);
    Buffer buffer(memory->data(), 10 + static_cast<uint64_t>(communicator.rank()), DType::kF32);
    buffer.device = 0;
    buffer.stream = stream.get();
    communicator.StartAllReduce(buffer, ReduceOp::kSum);
  });
  for (const std::string& error : errors) {
    CHECK_THAT(
        error, Catch::EndsWith(
                   "rank 0 called all_reduce (f32, 10 elements, sum); rank 1 called all_reduce "
                   "(f32, 11 elements, sum)"));
  }
}

}  // namespace
}  // namespace dtrun::testing
