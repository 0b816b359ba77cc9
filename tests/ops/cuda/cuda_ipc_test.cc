// Collectives on GPUs, with ranks as threads of one process: the order in streams, graphs, memory,
// mismatches and timeouts.

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <source_location>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "dtrun/error.h"
#include "gpu/gpu_device.h"
#include "gpu/memory.h"
#include "gpu/stream.h"
#include "tests/gpu_simulator/graph.h"
#include "tests/ops/cuda/device_job.h"

extern "C" const unsigned long long dtrun_test_kernels[];

namespace dtrun::testing {
namespace {

using ops::Communicator;

// A rank's GPU and stream, with copies to and from the GPU.
class Gpu {
 public:
  explicit Gpu(int index = 0) : device_(gpu::Device::Get(index)), stream_(device_) {}

  const gpu::Stream& stream() const { return stream_; }
  Buffer On(void* data, uint64_t count, DType dtype = DType::kF32) const {
    Buffer buffer(data, count, dtype);
    buffer.device = device_.index();
    buffer.stream = stream_.get();
    return buffer;
  }
  void Upload(void* to, const std::vector<float>& values) const {
    const gpu::DeviceScope scope(device_);
    gpu::CopyToDevice(gpu::AddressOf(to), values.data(), values.size() * 4, stream_.get());
    stream_.Synchronize();
  }
  std::vector<float> Download(const void* from, uint64_t count) const {
    std::vector<float> values(count);
    const gpu::DeviceScope scope(device_);
    gpu::CopyToHost(values.data(), gpu::AddressOf(from), count * 4, stream_.get());
    stream_.Synchronize();
    return values;
  }

 private:
  const gpu::Device& device_;
  gpu::Stream stream_;
};

std::vector<float> Filled(uint64_t count, float value) { return std::vector<float>(count, value); }

// A check for the threads of ranks, which may not use Catch's checks.
void Expect(bool holds, const std::source_location& where = std::source_location::current()) {
  if (!holds) throw std::runtime_error("line " + std::to_string(where.line()) + " does not hold");
}

std::string RefusalOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("a world of one copies and scales on its stream") {
  const auto errors = RunDeviceRanks(1, [](Communicator& communicator) {
    const Gpu gpu;
    const auto a = communicator.AllocateOnDevice(0, 4096),
               b = communicator.AllocateOnDevice(0, 4096);
    gpu.Upload(a->data(), Filled(100, 3));
    communicator.StartAllReduce(
        gpu.On(a->data(), 100), gpu.On(b->data(), 100), ReduceOp::kAverage, {2, 5});
    Expect(gpu.Download(b->data(), 100) == Filled(100, 30));
    communicator.StartAllGather(gpu.On(b->data(), 100), gpu.On(a->data(), 100));
    Expect(gpu.Download(a->data(), 100) == Filled(100, 30));
    communicator.CheckDevice();
  });
  CHECK(errors == Nothing(1));
}

// The driver loads kernels when no kernel runs.
TEST_CASE("a rank that first uses other kernels does not keep a rank that waits for it waiting") {
  static gpu::Kernels other(dtrun_test_kernels, "test kernels");
  const auto errors = RunDeviceRanks(2, [](Communicator& communicator) {
    const Gpu gpu;
    const auto memory = communicator.AllocateOnDevice(0, 4096);
    gpu.Upload(memory->data(), Filled(100, 1));
    if (communicator.rank() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      other.Find(gpu.stream().device(), "dtrun_test_scale");
    }
    communicator.StartAllReduce(gpu.On(memory->data(), 100), ReduceOp::kSum);
    Expect(gpu.Download(memory->data(), 100) == Filled(100, 2));
    communicator.CheckDevice();
  });
  CHECK(errors == Nothing(2));
}

TEST_CASE("work enqueued after a collective sees its result and the host does not wait") {
  constexpr uint64_t kCount = 300'000;  // several rounds
  const auto errors = RunDeviceRanks(3, [](Communicator& communicator) {
    const Gpu gpu;
    const auto memory = communicator.AllocateOnDevice(0, kCount * 4);
    gpu.Upload(memory->data(), Filled(kCount, 1));
    for (int i = 0; i < 5; ++i)
      Expect(communicator.StartAllReduce(gpu.On(memory->data(), kCount), ReduceOp::kSum).Test());
    Expect(gpu.Download(memory->data(), kCount) == Filled(kCount, 243));
  });
  CHECK(errors == Nothing(3));
}

// Values with sums that need rounding, so another order gives other bits.
float ValueOf(int rank, uint64_t i) {
  return static_cast<float>(i % 1009 + 1) / static_cast<float>(3 + 7 * rank);
}
float TreeOf(uint64_t i, int first, int count) {
  if (count == 1) return ValueOf(first, i);
  const int left = count - count / 2;
  return TreeOf(i, first, left) + TreeOf(i, first + left, count / 2);
}

TEST_CASE("sums have the bits of the tree with any number of ranks and rounds") {
  for (const int size : {1, 2, 3, 4, 5, 7, 8}) {
    INFO(size << " ranks");
    for (const uint64_t count : {uint64_t{1003}, uint64_t{140'003}}) {  // one round, and several
      const auto errors = RunDeviceRanks(size, [&](Communicator& communicator) {
        const int index = communicator.rank() % gpu::DeviceCount();  // one GPU fits few ranks
        const Gpu gpu(index);
        const auto memory = communicator.AllocateOnDevice(index, count * 4);
        Expect(std::string(communicator.device_group(index).backend()) == "cuda_ipc");
        std::vector<float> values(count), sums(count);
        for (uint64_t i = 0; i < count; ++i) {
          values[i] = ValueOf(communicator.rank(), i);
          sums[i] = TreeOf(i, 0, size);
        }
        gpu.Upload(memory->data(), values);
        communicator.StartAllReduce(gpu.On(memory->data(), count), ReduceOp::kSum);
        Expect(gpu.Download(memory->data(), count) == sums);
        communicator.CheckDevice();
      });
      CHECK(errors == Nothing(size));
    }
  }
}

TEST_CASE("collectives from different streams run in the order of the calls") {
  const auto errors = RunDeviceRanks(2, [](Communicator& communicator) {
    const Gpu first, second;
    const auto memory = communicator.AllocateOnDevice(0, 4096);
    first.Upload(memory->data(), Filled(1000, 1));
    for (int i = 0; i < 10; ++i) {
      const Gpu& gpu = (i + communicator.rank()) % 2 == 0 ? first : second;
      communicator.StartAllReduce(gpu.On(memory->data(), 1000), ReduceOp::kSum);
    }
    const Gpu& last = communicator.rank() == 0 ? second : first;
    Expect(last.Download(memory->data(), 1000) == Filled(1000, 1024));
  });
  CHECK(errors == Nothing(2));
}

TEST_CASE("a graph with collectives can be launched many times between other collectives") {
  const auto errors = RunDeviceRanks(2, [](Communicator& communicator) {
    const Gpu gpu;
    const auto memory = communicator.AllocateOnDevice(0, 1 << 20);
    const auto result = communicator.AllocateOnDevice(0, 1 << 20);
    const uint64_t counts[] = {1000, 200'000};
    for (const uint64_t count : counts) {
      const Buffer buffer = gpu.On(memory->data(), count), all = gpu.On(result->data(), count);
      gpu.Upload(memory->data(), Filled(count, 1));
      const gpu::Graph graph(gpu.stream(), [&] {
        communicator.StartAllReduce(buffer, ReduceOp::kSum);
        communicator.StartAllReduce(buffer, all, ReduceOp::kMax);
      });
      CHECK(gpu.Download(memory->data(), count) == Filled(count, 1));
      for (int i = 0; i < 3; ++i) {
        graph.Launch(gpu.stream().get());
        communicator.StartAllReduce(buffer, ReduceOp::kAverage);
      }
      CHECK(gpu.Download(memory->data(), count) == Filled(count, 8));
      CHECK(gpu.Download(result->data(), count) == Filled(count, 8));
    }
  });
  CHECK(errors == Nothing(2));
}

TEST_CASE("a barrier on a GPU ends when all ranks have called it") {
  const auto errors = RunDeviceRanks(4, [](Communicator& communicator) {
    const Gpu gpu;
    for (int i = 0; i < 3; ++i) {
      ops::Collective barrier;
      barrier.input = gpu.On(nullptr, 0);
      communicator.Start(barrier);
    }
    gpu.stream().Synchronize();
    communicator.CheckDevice();
  });
  CHECK(errors == Nothing(4));
}

TEST_CASE("ranks with different calls get an error with each call and write no memory") {
  for (const uint64_t count : {uint64_t{10}, uint64_t{400'000}}) {
    const auto errors = RunDeviceRanks(2, [count](Communicator& communicator) {
      const Gpu gpu;
      const auto memory = communicator.AllocateOnDevice(0, (count + 1) * 4);
      gpu.Upload(memory->data(), Filled(count + 1, 7));
      const uint64_t own = count + static_cast<uint64_t>(communicator.rank());
      communicator.StartAllReduce(gpu.On(memory->data(), own), ReduceOp::kSum);
      Expect(gpu.Download(memory->data(), count + 1) == Filled(count + 1, 7));
      communicator.StartAllReduce(gpu.On(memory->data(), count), ReduceOp::kSum);
    });
    const std::string n = std::to_string(count), m = std::to_string(count + 1);
    CHECK(
        errors ==
        std::vector<std::string>(
            2,
            "the ranks disagree on a collective on GPUs: rank 0 called all_reduce "
            "(f32, " +
                n + " elements, sum); rank 1 called all_reduce (f32, " + m + " elements, sum)"));
  }
}

TEST_CASE("counts by rank that do not match are an error before any memory is written") {
  for (const uint64_t count : {uint64_t{5}, uint64_t{200'000}}) {
    const auto errors = RunDeviceRanks(3, [count](Communicator& communicator) {
      const Gpu gpu;
      const uint64_t all = 3 * count + 1;
      const auto input = communicator.AllocateOnDevice(0, all * 4);
      const auto output = communicator.AllocateOnDevice(0, all * 4);
      gpu.Upload(output->data(), Filled(all, 7));
      // Rank 2 expects one element more from rank 0 than rank 0 sends.
      const ops::Counts sends(3, count);
      ops::Counts receives(3, count);
      if (communicator.rank() == 2) ++receives[0];
      const uint64_t total = std::accumulate(receives.begin(), receives.end(), uint64_t{0});
      communicator.StartAllToAll(
          gpu.On(input->data(), 3 * count), gpu.On(output->data(), total), sends, receives);
      Expect(gpu.Download(output->data(), all) == Filled(all, 7));
      communicator.CheckDevice();
    });
    CHECK(
        errors == std::vector<std::string>(
                      3, "the ranks disagree on a collective on GPUs: all_to_all: rank 0 sends " +
                             std::to_string(count) + " elements to rank 2, which expects " +
                             std::to_string(count + 1)));
  }
}

TEST_CASE("a message with different counts is refused on both sides") {
  const auto errors = RunDeviceRanks(2, [](Communicator& communicator) {
    const Gpu gpu;
    const auto memory = communicator.AllocateOnDevice(0, 4096);
    gpu.Upload(memory->data(), Filled(100, 7));
    if (communicator.rank() == 0) {
      communicator.StartSend(gpu.On(memory->data(), 10), 1);
    } else {
      communicator.StartReceive(gpu.On(memory->data(), 11), 0);
    }
    Expect(gpu.Download(memory->data(), 100) == Filled(100, 7));
    communicator.CheckDevice();
  });
  CHECK(
      errors == std::vector<std::string>(
                    2,
                    "the ranks disagree on a message between GPUs: rank 0 called send (f32, 10 "
                    "elements, to rank 1); rank 1 called receive (f32, 11 elements, from rank 0)"));
}

TEST_CASE("a collective on a GPU times out on all ranks and names the late rank") {
  std::atomic<int> gave_up = 0;
  std::vector<ErrorCode> codes(3, ErrorCode::kSystem);
  const auto errors = RunDeviceRanks(
      3,
      [&](Communicator& communicator) {
        const Gpu gpu;
        const auto memory = communicator.AllocateOnDevice(0, 4096);
        const bool late = communicator.rank() == 1;
        while (late && gave_up < 2) std::this_thread::yield();
        communicator.StartAllReduce(gpu.On(memory->data(), 5), ReduceOp::kSum);
        gpu.stream().Synchronize();
        ++gave_up;
        try {
          communicator.CheckDevice();
        } catch (const Error& error) {
          codes[static_cast<size_t>(communicator.rank())] = error.code();
          throw;
        }
      },
      std::chrono::seconds(2));
  CHECK(codes == std::vector<ErrorCode>(3, ErrorCode::kTimeout));
  // Each rank that waited names itself. The late rank gets the error of a rank that waited.
  for (const std::string& error : errors) {
    CHECK_THAT(
        error, Catch::EndsWith(
                   " waited for rank 1 to call all_reduce (f32, 5 elements, sum) on a GPU, and has "
                   "given up"));
  }
}

TEST_CASE("a wait on a GPU ends when the host knows that a rank is lost") {
  std::atomic<bool> over = false;
  const auto errors = RunDeviceRanks(
      2,
      [&](Communicator& communicator) {
        const Gpu gpu;
        const auto memory = communicator.AllocateOnDevice(0, 4096);
        while (communicator.rank() == 1 && !over) std::this_thread::yield();
        if (communicator.rank() == 1) return;
        // The host's wait starts earlier, so it times out first.
        ops::Work barrier = communicator.StartBarrier();
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        communicator.StartAllReduce(gpu.On(memory->data(), 5), ReduceOp::kSum);
        RefusalOf([&] { barrier.Wait(); });
        gpu.stream().Synchronize();
        over = true;
        communicator.CheckDevice();
      },
      std::chrono::seconds(3));
  CHECK(
      errors[0] ==
      "rank 0 waited for rank 1 to call all_reduce (f32, 5 elements, sum) on a GPU when the job "
      "lost a rank");
  CHECK(errors[1] == "");
}

TEST_CASE("buffers must share a GPU and a stream and a group must keep its GPU") {
  const auto errors = RunDeviceRanks(2, [](Communicator& communicator) {
    const Gpu gpu, other;
    const auto memory = communicator.AllocateOnDevice(0, 4096);
    const Buffer here = gpu.On(memory->data(), 10), there = other.On(memory->data(), 10);
    const std::string refusal =
        RefusalOf([&] { communicator.StartAllReduce(here, there, ReduceOp::kSum); });
    Expect(refusal.find("expected both on one GPU and in one stream") != std::string::npos);
    Buffer elsewhere = here;
    elsewhere.device = 1;
    Expect(
        RefusalOf([&] { communicator.StartAllReduce(elsewhere, ReduceOp::kSum); }) ==
        "the data lies on GPU 1; expected GPU 0, which this rank has used in world before");
  });
  CHECK(errors == Nothing(2));
}

}  // namespace
}  // namespace dtrun::testing
