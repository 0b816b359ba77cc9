// All-reduces of ranks that are threads of one process and share a GPU, as a ratio to what the GPU
// copies, which is measured in turn with them. Prints one JSON object:
//
//   small   microseconds of one of `count` all-reduces in a graph, by the GPU's clock
//   large   microseconds; bytes_per_second of the memory that it has to read and write (each of p
//           ranks reads and writes 1/p of p inputs and outputs: 2 p n bytes in all); copy: what a
//           copy of as many bytes reads and writes in a second; share: of the first in the second
//   enqueue microseconds of the host to start one that is small
//
// Medians of all runs, of the slowest rank each.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "dtrun/error.h"
#include "gpu/device.h"
#include "gpu/memory.h"
#include "gpu/stream.h"
#include "ops/communicator.h"
#include "ops/cuda/device_backends.h"
#include "ops/engine.h"
#include "ops/local_bootstrap.h"
#include "ops/self/self_communicator.h"
#include "ops/shm/shm_communicator.h"

namespace {

namespace gpu = dtrun::gpu;
namespace ops = dtrun::ops;
using dtrun::Buffer;

struct Options {
  int ranks = 2, device = 0, runs = 9, count = 20;
  uint64_t small_bytes = 4 << 10, large_bytes = 256 << 20;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

// What one rank does, and the slowest rank's figures of each run.
class Rank {
 public:
  Rank(const Options& options, ops::Communicator& communicator)
      : options_(options),
        communicator_(communicator),
        device_(gpu::Device::Get(options.device)),
        stream_(device_),
        memory_(communicator.AllocateOnDevice(options.device, options.large_bytes)) {}

  nlohmann::json Run() {
    const gpu::DeviceScope scope(device_);
    const Buffer small = On(options_.small_bytes), large = On(options_.large_bytes);
    const auto reduce = [&](const Buffer& buffer) {
      communicator_.StartAllReduce(buffer, dtrun::ReduceOp::kSum);
    };
    // While kernels of the other ranks wait for this one, to take memory might wait for them.
    const gpu::DeviceMemory from(device_, options_.large_bytes), to(device_, options_.large_bytes);
    communicator_.Barrier();
    reduce(small);
    reduce(large);
    const gpu::Graph graph(stream_, [&] {
      for (int i = 0; i < options_.count; ++i) reduce(small);
    });
    std::vector<double> small_us, large_us, copy_us, enqueue_us;
    for (int run = 0; run < options_.runs; ++run) {
      small_us.push_back(Slowest([&] { graph.Launch(stream_.get()); }) / options_.count);
      large_us.push_back(Slowest([&] { reduce(large); }));
      // The GPU is one rank's alone meanwhile.
      copy_us.push_back(Slowest([&] {
        if (communicator_.rank() == 0)
          gpu::CopyOnDevice(to.address(), from.address(), options_.large_bytes, stream_.get());
      }));
      enqueue_us.push_back(Agreed(Enqueue([&] { reduce(small); })));
    }
    communicator_.CheckDevice();
    const double moved = 2.0 * options_.ranks * static_cast<double>(options_.large_bytes);
    const double copied = 2.0 * static_cast<double>(options_.large_bytes);
    const double reached = moved / (Median(large_us) * 1e-6);
    const double possible = copied / (Median(copy_us) * 1e-6);
    return {
        {"gpu", device_.name()},
        {"backend", communicator_.device_group(options_.device).backend()},
        {"ranks", options_.ranks},
        {"runs", options_.runs},
        {"small",
         {{"bytes", options_.small_bytes},
          {"microseconds", Median(small_us)},
          {"count", options_.count}}},
        {"large",
         {{"bytes", options_.large_bytes},
          {"microseconds", Median(large_us)},
          {"bytes_per_second", reached},
          {"copy_bytes_per_second", possible},
          {"share", reached / possible}}},
        {"enqueue", {{"microseconds", Median(enqueue_us)}}}};
  }

 private:
  Buffer On(uint64_t bytes) const {
    Buffer buffer(memory_->data(), bytes / 4, dtrun::DType::kF32);
    buffer.device = options_.device;
    buffer.stream = stream_.get();
    return buffer;
  }

  // The largest of all ranks.
  double Agreed(double value) {
    communicator_.AllReduce(Buffer(&value, 1), dtrun::ReduceOp::kMax);
    return value;
  }

  // Microseconds on the GPU.
  double Slowest(const std::function<void()>& enqueue) {
    gpu::Event begin(device_, gpu::Event::Timing::kOn), end(device_, gpu::Event::Timing::kOn);
    stream_.Synchronize();
    communicator_.Barrier();
    begin.Record(stream_.get());
    enqueue();
    end.Record(stream_.get());
    stream_.Synchronize();
    return Agreed(1000 * end.MillisecondsSince(begin));
  }

  // Microseconds of the host for one of some.
  double Enqueue(const std::function<void()>& start) {
    using Clock = std::chrono::steady_clock;
    constexpr int kCalls = 10;
    stream_.Synchronize();
    communicator_.Barrier();
    const Clock::time_point before = Clock::now();
    for (int i = 0; i < kCalls; ++i) start();
    const std::chrono::duration<double, std::micro> took = Clock::now() - before;
    stream_.Synchronize();
    return took.count() / kCalls;
  }

  const Options& options_;
  ops::Communicator& communicator_;
  const gpu::Device& device_;
  gpu::Stream stream_;
  std::unique_ptr<ops::Memory> memory_;
};

nlohmann::json RunRank(const Options& options, int rank) {
  const dtrun::base::SteadyClock clock;
  ops::Engine engine({.timeout = std::chrono::seconds(60)}, clock, [](auto, const std::string&) {});
  std::unique_ptr<ops::Communicator> communicator;
  std::unique_ptr<ops::Bootstrap> bootstrap;
  if (options.ranks == 1) {
    communicator = ops::CreateSelfCommunicator();
  } else {
    bootstrap = ops::JoinLocally(
        {.name = "gpu_all_reduce_perf " + std::to_string(::getpid()),
         .rank = rank,
         .size = options.ranks,
         .timeout = std::chrono::seconds(60)});
    communicator =
        ops::CreateShmCommunicator(*bootstrap, engine, ops::Members::World(options.ranks));
  }
  communicator->UseDevices(ops::DeviceBackends());
  return Rank(options, *communicator).Run();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("All-reduces of ranks that are threads and share a GPU, beside its copies");
  app.add_option("--ranks", options.ranks)->check(CLI::Range(1, 32))->capture_default_str();
  app.add_option("--device", options.device)->capture_default_str();
  app.add_option("--runs", options.runs)->check(CLI::Range(1, 10000))->capture_default_str();
  app.add_option("--count", options.count, "Small ones in a graph")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--small-bytes", options.small_bytes)->capture_default_str();
  app.add_option("--large-bytes", options.large_bytes)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  options.small_bytes = std::min(options.small_bytes, options.large_bytes);

  std::mutex mutex;
  std::string error;
  nlohmann::json result;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        nlohmann::json mine = RunRank(options, rank);
        std::lock_guard lock(mutex);
        if (rank == 0) result = std::move(mine);
      } catch (const dtrun::Error& failed) {
        std::lock_guard lock(mutex);
        error = failed.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!error.empty()) {
    std::fprintf(stderr, "gpu_all_reduce_perf: %s\n", error.c_str());
    return 1;
  }
  std::printf("%s\n", result.dump(2).c_str());
}
