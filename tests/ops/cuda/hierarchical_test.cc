// The hierarchical backend for ranks of several hosts. Ranks are threads of one process, and the
// hosts exist in name only. With NCCL between hosts, all ranks of a host use one GPU, and each host
// has its own GPU. With host_staged between hosts, all ranks use one GPU.

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <future>
#include <source_location>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "gpu/gpu_device.h"
#include "gpu/memory.h"
#include "gpu/stream.h"
#include "ops/collective/host_map.h"
#include "ops/hierarchical/hierarchical_device_group.h"
#include "tests/conformance/suite.h"
#include "tests/gpu_simulator/graph.h"
#include "tests/ops/cuda/device_job.h"
#include "tests/ops/cuda/device_ranks.h"

namespace dtrun::testing {
namespace {

using ops::Communicator;
using Texts = std::vector<std::string>;
using HostOfRank = std::vector<int>;

enum class Across { kNccl, kHostStaged };

struct Job {
  HostOfRank hosts;
  Across across = Across::kNccl;
  base::Duration timeout = std::chrono::seconds(20);
  uint64_t chunk_bytes = 4096;  // little data fills many chunks

  size_t size() const { return hosts.size(); }
  int gpu(int rank) const { return across == Across::kNccl ? hosts[static_cast<size_t>(rank)] : 0; }
  int gpus() const { return across == Across::kNccl ? ops::HostMap(hosts).host_count() : 1; }
};

bool CanRun(const Job& job) {
  if (gpu::DeviceCount() >= job.gpus()) return true;
  WARN("SKIPPED: there are fewer than " << job.gpus() << " GPUs");
  return false;
}

ops::Members MembersOf(const HostOfRank& hosts) {
  ops::Members members = ops::Members::World(static_cast<int>(hosts.size()));
  for (const int host : hosts) members.hosts.push_back("h" + std::to_string(host));
  return members;
}

// Returns the error of each rank, "" if the rank succeeds.
Texts RunHosts(
    const Job& job, const ops::DeviceGroupFactory& factory,
    const std::function<void(Communicator&)>& rank_main) {
  const base::SteadyClock clock;
  return RunRanks(static_cast<int>(job.size()), [&](ops::Bootstrap& bootstrap) {
    ops::Engine engine(
        {.timeout = job.timeout, .may_spin = false}, clock, [](auto, const auto&) {});
    const auto communicator = ops::CreateShmCommunicator(bootstrap, engine, MembersOf(job.hosts));
    communicator->UseDevices(factory);
    rank_main(*communicator);
  });
}

Texts RunHosts(const Job& job, const std::function<void(Communicator&)>& rank_main) {
  const auto factory = [&](Communicator& host, int index) {
    return ops::cuda::CreateHierarchicalGroup(
        host, gpu::Device::Get(index), {.chunk_bytes_per_rail = job.chunk_bytes});
  };
  return RunHosts(job, factory, rank_main);
}

// ---- conformance

void Conforms(const Job& job, const std::function<void(Ranks&, Findings&)>& check) {
  if (!CanRun(job)) return;
  std::vector<Findings> findings(job.size());
  const Texts errors = RunHosts(job, [&](Communicator& communicator) {
    const int gpu = job.gpu(communicator.rank());
    if (std::string(communicator.device_group(gpu).backend()) != "hierarchical")
      throw std::runtime_error("another backend");
    const auto ranks = OverDevice(communicator, gpu);
    check(*ranks, findings[static_cast<size_t>(communicator.rank())]);
  });
  CHECK(errors == Texts(job.size()));
  for (const Findings& found : findings) {
    CHECK(found.checks > 0);
    CHECK(found.texts == Texts());
  }
}

void IsRandomlyUsed(Ranks& ranks, Findings& findings) {
  CheckRandomOperations(ranks, findings, 41, 200, false);
}

TEST_CASE("every kind gives the promised values over hosts with NCCL") {
  Conforms({.hosts = {0, 0, 1, 1}, .chunk_bytes = 64 << 10}, CheckEveryKindInTurn);
}

TEST_CASE("every kind gives the promised values over hosts with different numbers of ranks") {
  Conforms({.hosts = {0, 1, 1}, .chunk_bytes = 64 << 10}, CheckEveryKindInTurn);
}

TEST_CASE("every kind gives the promised values over hosts with host_staged") {
  Conforms(
      {.hosts = {0, 0, 1}, .across = Across::kHostStaged, .chunk_bytes = 64 << 10},
      CheckEveryKindInTurn);
}

TEST_CASE("random operations in flight at once give the promised values over hosts") {
  Conforms({.hosts = {0, 1, 1, 0}}, IsRandomlyUsed);
  Conforms({.hosts = {0, 1, 0, 2, 0, 2}}, IsRandomlyUsed);
  Conforms({.hosts = {0, 0, 1, 1}, .across = Across::kHostStaged}, IsRandomlyUsed);
  Conforms({.hosts = {0, 0, 1}, .across = Across::kHostStaged}, IsRandomlyUsed);
}

TEST_CASE("sums with rounding have the same bits on all ranks of all hosts and in every run") {
  Conforms({.hosts = {0, 0, 1, 1}}, CheckSameBits);
  Conforms({.hosts = {0, 0, 0, 1}, .across = Across::kHostStaged}, CheckSameBits);
}

TEST_CASE("communicators of fewer ranks work over hosts") {
  Conforms({.hosts = {0, 0, 1, 1}}, CheckSubCommunicators);
}

// ---- a rank

void Expect(bool holds, const std::source_location& where = std::source_location::current()) {
  if (!holds) throw std::runtime_error("line " + std::to_string(where.line()) + " does not hold");
}

std::vector<float> Filled(uint64_t count, double value) {
  return std::vector<float>(count, static_cast<float>(value));
}

// A stream, and a buffer in memory that other ranks reach.
class Gpu {
 public:
  Gpu(Communicator& communicator, int index, uint64_t count)
      : device_(gpu::Device::Get(index)),
        stream_(device_),
        memory_(communicator.AllocateOnDevice(index, count * 4)),
        count_(count) {}

  const gpu::Stream& stream() const { return stream_; }
  Buffer buffer() const { return buffer(count_); }
  Buffer buffer(uint64_t count) const { return On(memory_->data(), count, stream_); }
  Buffer On(void* data, uint64_t count, const gpu::Stream& stream) const {
    Buffer buffer(data, count, DType::kF32);
    buffer.device = device_.index();
    buffer.stream = stream.get();
    return buffer;
  }
  void Write(double value) const {
    const std::vector<float> values = Filled(count_, value);
    const gpu::DeviceScope scope(device_);
    gpu::CopyToDevice(
        gpu::AddressOf(memory_->data()), values.data(), values.size() * 4, stream_.get());
    stream_.Synchronize();
  }
  std::vector<float> Read() const {
    std::vector<float> values(count_);
    const gpu::DeviceScope scope(device_);
    gpu::CopyToHost(
        values.data(), gpu::AddressOf(memory_->data()), values.size() * 4, stream_.get());
    stream_.Synchronize();
    return values;
  }
  // A driver may report an error if kernels were ended.
  void Wait() const {
    try {
      stream_.Synchronize();
    } catch (const Error&) {
    }
  }

 private:
  const gpu::Device& device_;
  gpu::Stream stream_;
  std::unique_ptr<ops::Memory> memory_;
  uint64_t count_;
};

constexpr uint64_t kCount = 50'000;  // many chunks; the last chunk is not full

TEST_CASE("work enqueued after collectives over hosts sees the results of all chunks") {
  const Job job{.hosts = {0, 0, 1, 1}};
  if (!CanRun(job)) return;
  CHECK(RunHosts(job, [&](Communicator& communicator) {
          const Gpu gpu(communicator, job.gpu(communicator.rank()), kCount);
          gpu.Write(1);
          for (int i = 0; i < 4; ++i)
            Expect(communicator.StartAllReduce(gpu.buffer(), ReduceOp::kSum).Test());
          Expect(gpu.Read() == Filled(kCount, 256));
          communicator.CheckDevice();
        }) == Texts(4));
}

TEST_CASE("a collective over hosts cannot be captured into a graph") {
  const Job job{.hosts = {0, 0, 1, 1}, .across = Across::kHostStaged};
  CHECK(
      RunHosts(
          job,
          [&](Communicator& communicator) {
            const Gpu gpu(communicator, 0, 100);
            const gpu::Graph graph(
                gpu.stream(), [&] { communicator.StartAllReduce(gpu.buffer(), ReduceOp::kSum); });
          }) ==
      Texts(
          4,
          "all_reduce: the stream is being captured into a graph, of which hierarchical cannot be "
          "a part"));
}

TEST_CASE("collectives over hosts from different streams run in the order of the calls") {
  const Job job{.hosts = {0, 0, 1, 1}};
  if (!CanRun(job)) return;
  CHECK(RunHosts(job, [&](Communicator& communicator) {
          const Gpu gpu(communicator, job.gpu(communicator.rank()), 4000);
          const gpu::Stream other(gpu::Device::Get(job.gpu(communicator.rank())));
          const Buffer here = gpu.buffer();
          const Buffer there = gpu.On(here.data, here.count, other);
          const Gpu result(communicator, job.gpu(communicator.rank()), 4000);
          const Buffer exchanged = result.On(result.buffer().data, 4000, other);
          gpu.Write(1);
          for (int i = 0; i < 3; ++i) {
            communicator.StartAllReduce(here, ReduceOp::kSum);
            communicator.StartAllReduce(there, ReduceOp::kAverage);
          }
          communicator.StartAllReduce(here, ReduceOp::kSum);
          communicator.StartAllToAll(there, exchanged);  // over host_staged
          other.Synchronize();
          Expect(result.Read() == Filled(4000, 256));
        }) == Texts(4));
}

TEST_CASE("messages reach ranks of the same host and ranks of other hosts") {
  const Job job{.hosts = {0, 0, 1, 1}};
  if (!CanRun(job)) return;
  CHECK(RunHosts(job, [&](Communicator& communicator) {
          const int rank = communicator.rank();
          const Gpu from(communicator, job.gpu(rank), 1000), to(communicator, job.gpu(rank), 1000);
          for (const int peer : {rank ^ 1, rank ^ 2, rank ^ 3}) {
            from.Write(rank);
            to.Write(-1);
            communicator.StartSend(from.buffer(), peer);
            communicator.StartReceive(to.buffer(), peer);
            Expect(to.Read() == Filled(1000, peer));
            from.Wait();
          }
          communicator.CheckDevice();
        }) == Texts(4));
}

// ---- failures

constexpr uint64_t kFew = 5'000;  // a few chunks
// A time limit that correct calls do not reach on a slow machine.
constexpr auto kPatience = std::chrono::seconds(6);
const Job kImpatient{.hosts = {0, 0, 1, 1}, .timeout = kPatience};
const Job kUneven{.hosts = {0, 0, 0, 1, 1}, .timeout = kPatience};

// The ranks of a job whose calls differ get the error of each rank. Then they make equal calls.
Texts Disagree(const Job& job, const std::function<uint64_t(int)>& count_of_rank) {
  return RunHosts(job, [&](Communicator& communicator) {
    const Gpu gpu(communicator, job.gpu(communicator.rank()), kFew);
    gpu.Write(1);
    std::string error;
    try {
      communicator.StartAllReduce(gpu.buffer(count_of_rank(communicator.rank())), ReduceOp::kSum);
    } catch (const Error& thrown) {
      Expect(thrown.code() == ErrorCode::kMismatch);
      error = thrown.what();
    }
    Expect(gpu.Read() == Filled(kFew, 1));
    communicator.StartAllReduce(gpu.buffer(), ReduceOp::kSum);
    Expect(gpu.Read() == Filled(kFew, communicator.size()));
    throw std::runtime_error(error);
  });
}

TEST_CASE("a disagreement within a host is an error with each call on all hosts") {
  for (const Across across : {Across::kNccl, Across::kHostStaged}) {
    const Job job{.hosts = {0, 0, 1, 1}, .across = across};
    if (!CanRun(job)) continue;
    CHECK(
        Disagree(job, [](int rank) { return rank == 3 ? 11 : 10; }) ==
        Texts(
            4,
            "the ranks disagree on a collective on GPUs: ranks 0 (h0), 1 (h0) and 2 (h1) called "
            "all_reduce (f32, 10 elements, sum); rank 3 (h1) called all_reduce (f32, 11 elements, "
            "sum)"));
  }
}

TEST_CASE("a disagreement between hosts is an error with each call with equal or more chunks") {
  const Job job{.hosts = {0, 0, 1, 1}};
  if (!CanRun(job)) return;
  for (const uint64_t count : {uint64_t{11}, kFew}) {
    CHECK(
        Disagree(job, [&](int rank) { return rank >= 2 ? count : 10; }) ==
        Texts(
            4, base::Text(
                   "the ranks disagree on a collective on GPUs: ranks 0 (h0) and 1 (h0) called "
                   "all_reduce (f32, 10 elements, sum); ranks 2 (h1) and 3 (h1) called all_reduce "
                   "(f32, ",
                   count, " elements, sum)")));
  }
}

// Runs `call` on the ranks for which `comes` is true. The other ranks end before it.
Texts SomeCome(
    const Job& job, const std::function<bool(int)>& comes,
    const std::function<void(Communicator&, const Gpu&)>& call) {
  return RunHosts(job, [&](Communicator& communicator) {
    const Gpu gpu(communicator, job.gpu(communicator.rank()), kFew);
    communicator.StartAllReduce(gpu.buffer(), ReduceOp::kSum);
    gpu.stream().Synchronize();
    if (!comes(communicator.rank())) return;
    try {
      call(communicator, gpu);
    } catch (const Error& error) {
      Expect(error.code() == ErrorCode::kTimeout);
      throw;
    }
  });
}

Texts WithoutRank(int absent) {
  return SomeCome(
      kUneven, [&](int rank) { return rank != absent; },
      [](Communicator& communicator, const Gpu& gpu) {
        communicator.StartAllReduce(gpu.buffer(), ReduceOp::kSum);
      });
}

Texts WithoutHost() {
  return SomeCome(
      kImpatient, [](int rank) { return rank < 2; },
      [](Communicator& communicator, const Gpu& gpu) {
        communicator.StartBroadcast(gpu.buffer(), 0);
      });
}

// The jobs that end only by their time limit. They run at the same time.
struct Waits {
  static std::future<Texts> Begin(const std::function<Texts()>& job) {
    return std::async(std::launch::async, job);
  }
  std::future<Texts> without_rank_of_rail = Begin([] { return WithoutRank(1); });
  std::future<Texts> without_rank_of_none = Begin([] { return WithoutRank(2); });
  std::future<Texts> without_host = Begin(WithoutHost);
};
Waits& UnderWay() {
  static Waits waits;
  return waits;
}

void ExpectTimeouts(const Texts& texts, const std::vector<int>& absent, const std::string& call) {
  for (int rank = 0; rank < static_cast<int>(texts.size()); ++rank) {
    INFO("rank " << rank);
    const std::string& text = texts[static_cast<size_t>(rank)];
    if (std::find(absent.begin(), absent.end(), rank) != absent.end()) {
      CHECK(text == "");
      continue;
    }
    CHECK_THAT(
        text, Catch::StartsWith(call + " on a GPU failed while the ranks compared their calls: "));
    CHECK_THAT(text, Catch::Contains(' ' + std::to_string(absent[0]) + " (h"));
  }
}

TEST_CASE("a call times out on all ranks of all hosts if one rank does not call it") {
  if (!CanRun(kUneven)) return;
  const std::string call = "all_reduce (f32, 5000 elements, sum)";
  ExpectTimeouts(UnderWay().without_rank_of_rail.get(), {1}, call);
  ExpectTimeouts(UnderWay().without_rank_of_none.get(), {2}, call);
}

TEST_CASE("a call times out on the other hosts if one host does not call it") {
  if (!CanRun(kImpatient)) return;
  ExpectTimeouts(UnderWay().without_host.get(), {2, 3}, "broadcast (f32, 5000 elements, root 0)");
}

// ---- the choice of the backend

Texts BackendsOf(const HostOfRank& hosts, int gpus, const std::string& wanted) {
  const Job job{.hosts = hosts};
  return RunHosts(job, ops::DeviceBackends({.backend = wanted}), [&](Communicator& communicator) {
    throw std::runtime_error(communicator.device_group(communicator.rank() % gpus).backend());
  });
}

TEST_CASE("hierarchical serves the ranks of several hosts that share GPUs") {
  CHECK(BackendsOf({0, 0, 1, 1}, 1, "auto") == Texts(4, "hierarchical"));
  CHECK(BackendsOf({0, 0, 0}, 1, "auto") == Texts(3, "cuda_ipc"));
  CHECK(BackendsOf({0, 1, 2}, 1, "auto") == Texts(3, "host_staged"));
  if (gpu::DeviceCount() >= 4) CHECK(BackendsOf({0, 0, 1, 1}, 4, "auto") == Texts(4, "nccl"));
}

TEST_CASE("ranks that ask for hierarchical get it or the backend of its only level") {
  CHECK(BackendsOf({0, 0, 1}, 1, "hierarchical") == Texts(3, "hierarchical"));
  CHECK(BackendsOf({0, 0}, 1, "hierarchical") == Texts(2, "cuda_ipc"));
  CHECK(BackendsOf({0, 1}, 1, "hierarchical") == Texts(2, "host_staged"));
}

}  // namespace
}  // namespace dtrun::testing
