// A call becomes the arguments of a kernel (plan.cc), which is enqueued; the rest is between the
// kernels of the ranks (collectives.cu), whose host hears of it only when something fails.

#include "ops/cuda/cuda_ipc_group.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "gpu/driver.h"
#include "gpu/kernels.h"
#include "gpu/memory.h"
#include "gpu/stream.h"
#include "ops/communicator.h"
#include "ops/cuda/agree.h"
#include "ops/cuda/peer_memory.h"
#include "ops/cuda/plan.h"
#include "ops/cuda/watch.h"

extern "C" const unsigned long long dtrun_collectives[];

namespace dtrun::ops::cuda {
namespace {

using base::Text;

gpu::Kernels& CollectiveKernels() {
  static auto* const kernels = new gpu::Kernels(dtrun_collectives, "the kernels of collectives");
  return *kernels;
}

// In the order of DType.
constexpr const char* kReductions[] = {"dtrun_reduce_u8",   "dtrun_reduce_i8",  "dtrun_reduce_u16",
                                       "dtrun_reduce_i16",  "dtrun_reduce_u32", "dtrun_reduce_i32",
                                       "dtrun_reduce_u64",  "dtrun_reduce_i64", "dtrun_reduce_f16",
                                       "dtrun_reduce_bf16", "dtrun_reduce_f32", "dtrun_reduce_f64",
                                       "dtrun_reduce_bool"};
constexpr const char* kMove = "dtrun_move";

const char* KernelOf(const Collective& collective) {
  if (!Combines(collective.kind)) return kMove;
  return kReductions[static_cast<size_t>(collective.input.dtype)];
}

// How many blocks of a kernel surely run at once, when half of the GPU is for `ranks` alike.
uint32_t BlocksAtOnce(const gpu::Device& device, int ranks) {
  const gpu::DeviceScope scope(device);
  int least = kMostBlocks;
  const auto look = [&](const char* kernel) {
    int on_each = 0;
    gpu::Check(
        gpu::Driver::Get().cuOccupancyMaxActiveBlocksPerMultiprocessor(
            &on_each, CollectiveKernels().Find(device, kernel), kMostThreads, 0),
        "cuOccupancyMaxActiveBlocksPerMultiprocessor");
    least = std::min(least, on_each * device.multiprocessors() / 2 / ranks);
  };
  look(kMove);
  for (const char* kernel : kReductions) look(kernel);
  if (least < 1) {
    throw Error(
        ErrorCode::kUnavailable,
        Text("the kernels of ", ranks, " ranks cannot run at once on ", device.name()));
  }
  return static_cast<uint32_t>(least);
}

// A report in pinned memory. It is never freed, but used again: to free it would wait for all that
// the process does on the GPU, so also for kernels of other ranks, which may wait for this one's.
class PooledReport {
 public:
  explicit PooledReport(const gpu::Device& device) {
    std::lock_guard lock(mutex());
    if (!pool().empty()) {
      memory_ = std::move(pool().back());
      pool().pop_back();
      *get() = {};
    } else {
      memory_ = gpu::PinnedMemory(device, sizeof(Report));
    }
  }
  ~PooledReport() {
    std::lock_guard lock(mutex());
    pool().push_back(std::move(memory_));
  }
  PooledReport(const PooledReport&) = delete;
  PooledReport& operator=(const PooledReport&) = delete;

  Report* get() const { return memory_.as<Report>(); }

 private:
  static std::mutex& mutex() {
    static auto* const mutex = new std::mutex;
    return *mutex;
  }
  static std::vector<gpu::PinnedMemory>& pool() {
    static auto* const pool = new std::vector<gpu::PinnedMemory>;
    return *pool;
  }

  gpu::PinnedMemory memory_;
};

// What outlives the group while memory from it is in use.
struct Core {
  Core(Communicator& host, const gpu::Device& gpu_in)
      : device(gpu_in), peers(host, gpu_in), done(gpu_in) {}

  const gpu::Device& device;
  PeerMemory peers;
  gpu::Event done;  // behind the last call that was enqueued, other than in a graph
  void* last_stream = nullptr;
  bool enqueued = false;
};

class GroupMemory : public Memory {
 public:
  GroupMemory(std::shared_ptr<Core> core, PeerMemory::Allocation allocation, uint64_t bytes)
      : Memory(allocation.memory == nullptr ? nullptr : allocation.memory->data(), bytes),
        core_(std::move(core)),
        allocation_(std::move(allocation)) {}
  // Kernels that read it are behind the event.
  ~GroupMemory() override {
    if (core_->enqueued) core_->done.Synchronize();
    core_->peers.Free(allocation_);
  }

 private:
  std::shared_ptr<Core> core_;
  PeerMemory::Allocation allocation_;
};

class CudaIpcGroup : public DeviceGroup {
 public:
  CudaIpcGroup(Communicator& host, const gpu::Device& device)
      : host_(host), core_(std::make_shared<Core>(host, device)) {
    uint64_t blocks = 0;
    AgreeOn(host, [&] {
      report_ = std::make_unique<PooledReport>(device);
      blocks = BlocksAtOnce(device, core_->peers.ranks_of_gpu());
    });
    Counts all(static_cast<size_t>(host.size()));
    host.AllGather(Buffer(&blocks, 1), Buffer(all.data(), all.size()));
    most_blocks_ = static_cast<uint32_t>(*std::min_element(all.begin(), all.end()));
    group_.rank = host.rank();
    group_.size = host.size();
    for (int r = 0; r < host.size(); ++r) group_.arenas[r] = core_->peers.arena(r);
    group_.offsets = core_->peers.offsets();
    group_.report = report_->get();
    watch_ = std::make_unique<Watch>(report(), host.engine());
  }

  // With the watch, which ends a wait that is in vain.
  ~CudaIpcGroup() override {
    if (core_->enqueued) core_->done.Synchronize();
  }

  const char* backend() const override { return "cuda_ipc"; }
  int device() const override { return core_->device.index(); }

  void Enqueue(const Collective& collective) override {
    Check();
    if (collective.kind == CollectiveKind::kSend || collective.kind == CollectiveKind::kReceive) {
      throw Error(
          ErrorCode::kUnavailable,
          Text(NameOf(collective.kind), ": messages between GPUs are not to be had of cuda_ipc"));
    }
    Plan plan = MakePlan(collective, group_.rank, group_.size, most_blocks_);
    Complete(plan, collective);
    core_->peers.log().Write(calls_, collective);
    const auto stream = static_cast<CUstream>(StreamOf(collective, group_.rank));
    const gpu::DeviceScope scope(core_->device);
    const bool captured = gpu::IsCapturing(stream);
    if (!captured && core_->enqueued && core_->last_stream != stream) core_->done.Delay(stream);
    CollectiveKernels().Launch(
        core_->device, KernelOf(collective), {.blocks = plan.blocks, .threads = plan.threads},
        stream, plan.args);
    if (captured) return;
    core_->done.Record(stream);
    core_->last_stream = stream;
    core_->enqueued = true;
  }

  void Check() override {
    if (error_ == nullptr) error_ = FindError();
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

  std::unique_ptr<Memory> Allocate(uint64_t bytes) override {
    Check();
    return std::make_unique<GroupMemory>(core_, core_->peers.Allocate(bytes), bytes);
  }

 private:
  Report& report() { return *report_->get(); }

  // Where the buffers lie, and whether others reach them.
  void Complete(Plan& plan, const Collective& collective) {
    CollectiveArgs& args = plan.args;
    args.group = group_;
    args.call = ++calls_;
    args.input = static_cast<char*>(collective.input.data);
    args.output = static_cast<char*>(collective.output.data);
    bool reached = true;
    args.input_region = args.output_region = kSameAddress;
    if (plan.input_is_read) {
      args.input_region = core_->peers.RegionOf(args.input, collective.input.bytes());
      reached &= args.input_region != kUnreachable;
    }
    if (plan.output_is_written) {
      args.output_region = core_->peers.RegionOf(args.output, collective.output.bytes());
      reached &= args.output_region != kUnreachable;
    }
    if (reached) args.flags |= kReachable;
  }

  std::exception_ptr FindError() {
    Poison& poison = report().poison;
    const uint32_t failure = std::atomic_ref(poison.failure).load(std::memory_order_acquire);
    if (failure == kNone) return nullptr;
    const Members& members = host_.members();
    if (failure == kDisagreed) {
      return std::make_exception_ptr(Error(
          ErrorCode::kMismatch, Text(
                                    "the ranks disagree on a collective on GPUs: ",
                                    core_->peers.log().Disagreement(poison.calls, members))));
    }
    std::vector<int> missing;
    for (int r = 0; r < group_.size; ++r) {
      if ((poison.missing >> r & 1) != 0) missing.push_back(r);
    }
    const auto by = static_cast<int>(poison.by);
    const std::string waited = Text(
        members.List({by}), " waited for ", members.List(missing), " to call ",
        core_->peers.log().Describe(by, poison.calls[by]), " on a GPU");
    if (failure == kLost)
      return std::make_exception_ptr(
          Error(ErrorCode::kPeerLost, Text(waited, " when the job lost a rank")));
    return std::make_exception_ptr(Error(ErrorCode::kTimeout, Text(waited, ", and has given up")));
  }

  Communicator& host_;
  std::shared_ptr<Core> core_;
  std::unique_ptr<PooledReport> report_;
  std::unique_ptr<Watch> watch_;
  uint32_t most_blocks_ = 1;
  Group group_ = {};
  uint32_t calls_ = 0;
  std::exception_ptr error_;
};

}  // namespace

std::string WhyNotCudaIpc(Communicator& host, const gpu::Device& device) {
  if (host.size() > kMostRanks) return Text("there are more than ", kMostRanks, " ranks");
  if (!host.members().SharesHost()) return "the ranks run on several hosts";
  return WhyNotExported(device);
}

std::unique_ptr<DeviceGroup> CreateCudaIpcGroup(Communicator& host, const gpu::Device& device) {
  return std::make_unique<CudaIpcGroup>(host, device);
}

}  // namespace dtrun::ops::cuda
