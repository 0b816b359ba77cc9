// The backend for ranks that no other one serves: the conformance suite, messages, and what it
// cannot do.

#include <catch2/catch.hpp>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "dtrun/error.h"
#include "gpu/device.h"
#include "gpu/memory.h"
#include "gpu/stream.h"
#include "tests/conformance/suite.h"
#include "tests/ops/cuda/device_job.h"
#include "tests/ops/cuda/device_ranks.h"

namespace dtrun::testing {
namespace {

std::vector<std::string> RunStaged(
    int size, const std::function<void(ops::Communicator&)>& rank_main) {
  return RunDeviceRanks(size, rank_main, std::chrono::seconds(20), "host_staged");
}

void Conforms(int size, const std::function<void(Ranks&, Findings&)>& check) {
  std::vector<Findings> findings(static_cast<size_t>(size));
  const auto errors = RunStaged(size, [&](ops::Communicator& communicator) {
    const auto ranks = OverDevice(communicator, 0);
    check(*ranks, findings[static_cast<size_t>(communicator.rank())]);
  });
  CHECK(errors == std::vector<std::string>(static_cast<size_t>(size)));
  for (const Findings& found : findings) {
    CHECK(found.checks > 0);
    CHECK(found.texts == std::vector<std::string>());
  }
}

TEST_CASE("every kind gives the promised bits by way of the host") { Conforms(2, CheckEveryKind); }

TEST_CASE("random operations give the promised bits by way of the host") {
  for (const int size : {1, 3, 4}) {
    Conforms(size, [](Ranks& ranks, Findings& findings) {
      CheckRandomOperations(ranks, findings, 31, 200, true);
    });
  }
}

TEST_CASE("a message by way of the host lets its sender go on") {
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
    // Both send first.
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

TEST_CASE("what goes by way of the host cannot be a part of a graph") {
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

TEST_CASE("ranks that call different things are told by the host's communicator") {
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
