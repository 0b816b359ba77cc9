// Times all-reduces on GPUs, alternately with a copy by one GPU. The ranks are threads of one
// process that share a GPU. With --processes, the ranks are processes that are spread over the
// GPUs. Prints one JSON object:
//
//   small    microseconds of one of `count` all-reduces in a row, by the GPU's clock
//   large    microseconds; bytes_per_second of the memory that an all-reduce has to read and
//            write (each of p ranks reads and writes 1/p of p inputs and outputs: 2 p n bytes in
//            all); copy_bytes_per_second that a copy reads and writes; share: the first rate
//            divided by the second
//   enqueue  microseconds of the host to start a small all-reduce
//
// All figures are medians over runs. The time of a run is that of the slowest rank. Hosts (--hosts)
// exist by name only.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/process.h"
#include "bench/benchmark.h"
#include "dtrun/error.h"
#include "gpu/gpu_device.h"
#include "gpu/memory.h"
#include "gpu/stream.h"
#include "ops/backends/backends.h"
#include "ops/bootstrap/bootstrap.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"
#include "ops/self/self_communicator.h"
#include "ops/shm/shm_communicator.h"

namespace {

namespace gpu = dtrun::gpu;
namespace ops = dtrun::ops;
using dtrun::Buffer;

struct Options {
  int ranks = 2, device = 0, runs = 9, count = 20, hosts = 1;
  std::string backend = "auto";
  bool processes = false;
  uint64_t small_bytes = 4 << 10, large_bytes = 256 << 20;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

// The work of one rank. The figures of each run are those of the slowest rank.
class Rank {
 public:
  Rank(const Options& options, ops::Communicator& communicator, int device)
      : options_(options),
        communicator_(communicator),
        device_(gpu::Device::Get(device)),
        stream_(device_),
        memory_(communicator.AllocateOnDevice(device, options.large_bytes)),
        // Allocated before any sum: an allocation may wait for kernels of other ranks, and these
        // kernels may wait for this rank.
        from_(device_, options.large_bytes),
        to_(device_, options.large_bytes) {}

  nlohmann::json Run() {
    const gpu::DeviceScope scope(device_);
    const Buffer small = On(memory_->data(), options_.small_bytes);
    const Buffer large = On(memory_->data(), options_.large_bytes);
    communicator_.Barrier();
    Reduce(small);
    Reduce(large);
    std::vector<double> small_us, large_us, copy_us, enqueue_us;
    for (int run = 0; run < options_.runs; ++run) {
      small_us.push_back(Slowest([&] { ReduceMany(small); }) / options_.count);
      large_us.push_back(Slowest([&] { Reduce(large); }));
      copy_us.push_back(Slowest([&] { Copy(); }));
      enqueue_us.push_back(Agreed(Enqueue([&] { Reduce(small); })));
    }
    communicator_.CheckDevice();
    return {
        {"gpu", device_.name()},
        {"backend", communicator_.device_group(device_.index()).backend()},
        {"ranks", options_.ranks},
        {"hosts", options_.hosts},
        {"processes", options_.processes},
        {"gpus", options_.processes ? std::min(options_.ranks, gpu::DeviceCount()) : 1},
        {"runs", options_.runs},
        {"small",
         {{"bytes", options_.small_bytes},
          {"microseconds", Median(small_us)},
          {"count", options_.count}}},
        {"large", BesideCopy(large_us, copy_us)},
        {"enqueue", {{"microseconds", Median(enqueue_us)}}}};
  }

 private:
  Buffer On(void* data, uint64_t bytes) const {
    Buffer buffer(data, bytes / 4, dtrun::DType::kF32);
    buffer.device = device_.index();
    buffer.stream = stream_.get();
    return buffer;
  }
  void Reduce(const Buffer& buffer) { communicator_.StartAllReduce(buffer, dtrun::ReduceOp::kSum); }
  void ReduceMany(const Buffer& buffer) {
    for (int i = 0; i < options_.count; ++i) Reduce(buffer);
  }
  // Only rank 0 copies, so the copy has the GPU alone.
  void Copy() const {
    if (communicator_.rank() == 0)
      gpu::CopyOnDevice(to_.address(), from_.address(), options_.large_bytes, stream_.get());
  }

  nlohmann::json BesideCopy(
      const std::vector<double>& reduce_us, const std::vector<double>& copy_us) const {
    const double moved = 2.0 * options_.ranks * static_cast<double>(options_.large_bytes);
    const double copied = 2.0 * static_cast<double>(options_.large_bytes);
    const double reached = moved / (Median(reduce_us) * 1e-6);
    const double possible = copied / (Median(copy_us) * 1e-6);
    return {
        {"bytes", options_.large_bytes},
        {"microseconds", Median(reduce_us)},
        {"bytes_per_second", reached},
        {"copy_bytes_per_second", possible},
        {"share", reached / possible}};
  }

  // The largest value of all ranks.
  double Agreed(double value) {
    communicator_.AllReduce(Buffer(&value, 1), dtrun::ReduceOp::kMax);
    return value;
  }

  // Microseconds on the GPU, of the slowest rank.
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

  // Microseconds of the host per call, over several calls.
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
  const gpu::DeviceMemory from_, to_;
};

// Each host has consecutive ranks, about as many as the other hosts.
ops::Members MembersOf(const Options& options) {
  ops::Members members = ops::Members::World(options.ranks);
  for (int rank = 0; options.hosts > 1 && rank < options.ranks; ++rank)
    members.hosts.push_back("host" + std::to_string(rank * options.hosts / options.ranks));
  return members;
}

nlohmann::json RunRank(const Options& options, const std::string& job, int rank) {
  const dtrun::base::SteadyClock clock;
  ops::Engine engine({.timeout = std::chrono::seconds(60)}, clock, [](auto, const std::string&) {});
  std::unique_ptr<ops::Communicator> communicator;
  std::unique_ptr<ops::Bootstrap> bootstrap;
  if (options.ranks == 1) {
    communicator = ops::CreateSelfCommunicator();
  } else {
    bootstrap = ops::JoinLocally(
        {.name = job, .rank = rank, .size = options.ranks, .timeout = std::chrono::seconds(60)});
    communicator = ops::CreateShmCommunicator(*bootstrap, engine, MembersOf(options));
  }
  communicator->UseDevices(ops::DeviceBackends({.backend = options.backend}));
  const int device = options.processes ? rank % gpu::DeviceCount() : options.device;
  return Rank(options, *communicator, device).Run();
}

// Runs a rank. Rank 0 prints the result or the error.
bool RunAndPrint(const Options& options, const std::string& job, int rank) {
  try {
    const nlohmann::json result = RunRank(options, job, rank);
    if (rank == 0) std::printf("%s\n", result.dump(2).c_str());
    return true;
  } catch (const dtrun::Error& failed) {
    if (rank == 0) std::fprintf(stderr, "gpu_all_reduce_perf: %s\n", failed.what());
    return false;
  }
}

bool RunThreads(const Options& options, const std::string& job) {
  std::vector<std::thread> threads;
  std::atomic<bool> good = true;
  for (int rank = 0; rank < options.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      if (!RunAndPrint(options, job, rank)) good = false;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return good;
}

// Forks before a rank makes anything, so that each process makes its own objects.
bool RunProcesses(const Options& options, const std::string& job) {
  std::vector<pid_t> others;
  for (int rank = 1; rank < options.ranks; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(RunAndPrint(options, job, rank) ? 0 : 1);
    others.push_back(pid);
  }
  bool good = RunAndPrint(options, job, 0);
  for (const pid_t pid : others) {
    int status = 1;
    good = pid > 0 && ::waitpid(pid, &status, 0) == pid && status == 0 && good;
  }
  std::fflush(stdout);
  return good;
}

}  // namespace

using dtrun::bench::OptionSet;
using dtrun::bench::Range;
using dtrun::bench::Words;

int main(int argc, char** argv) {
  Options options;
  OptionSet set("All-reduces on GPUs, beside what a GPU copies");
  set.Add("--ranks", &options.ranks, "", Range<int>{1, 32});
  set.Add("--device", &options.device, "Of all ranks that are threads");
  set.Add("--runs", &options.runs, "", Range<int>{1, 10000});
  set.Add("--count", &options.count, "Small ones in a row", Range<int>{1, 10000});
  set.Add("--small-bytes", &options.small_bytes, "");
  set.Add("--large-bytes", &options.large_bytes, "");
  set.Add(
      "--backend", &options.backend, "",
      Words{"auto", "cuda_ipc", "nccl", "hierarchical", "host_staged"});
  set.Add("--hosts", &options.hosts, "Which the ranks take for theirs", Range<int>{1, 32});
  set.Add("--processes", &options.processes, "Ranks are processes, and use all GPUs");
  if (const auto status = set.Parse(argc, argv)) return *status;
  options.small_bytes = std::min(options.small_bytes, options.large_bytes);
  // Streams of ranks that are threads wait for each other. So no stream may stand behind another
  // stream in a queue of the driver. By default, the driver has 8 queues.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  const std::string job = "gpu_all_reduce_perf " + std::to_string(::getpid());
  return (options.processes ? RunProcesses(options, job) : RunThreads(options, job)) ? 0 : 1;
}
