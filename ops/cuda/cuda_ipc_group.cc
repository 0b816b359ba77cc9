// Enqueue turns a call into the arguments of a kernel (kernel_call.cc) and launches the kernel. The
// kernels of the ranks do the rest among themselves (collectives.cu). The host learns of a call
// only if the call fails.

#include "ops/cuda/cuda_ipc_group.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "gpu/driver.h"
#include "gpu/kernels.h"
#include "gpu/stream.h"
#include "ops/communicator/communicator_base.h"
#include "ops/communicator/communicator_setup.h"
#include "ops/cuda/host_staged_group.h"
#include "ops/cuda/kernel_call.h"
#include "ops/cuda/peer_memory.h"

extern "C" const unsigned long long dtrun_collectives[];
extern "C" const unsigned long long dtrun_verdict[];

namespace dtrun::ops::cuda {
namespace {

using base::Text;

gpu::Kernels& CollectiveKernels() {
  static auto* const kernels = new gpu::Kernels(dtrun_collectives, "the kernels of collectives");
  return *kernels;
}

gpu::Kernels& VerdictKernels() {
  static auto* const kernels = new gpu::Kernels(dtrun_verdict, "the verdicts of hosts");
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

// The number of blocks of a kernel that can run at the same time if `ranks` ranks share half of the
// GPU equally.
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

// The kernels of the same ranks, in order: those of collectives, or those of the messages from one
// rank to another.
struct Channel {
  explicit Channel(const gpu::Device& device) : done(device) {}

  Group group = {};
  gpu::Event done;  // after the last call that was enqueued outside a graph
  CUstream last_stream = nullptr;
  bool enqueued = false;
};

// The channels of a group, by the number of the report. Memory from the group may outlive the
// group, and keeps them.
struct Channels {
  // Waits for all calls that this rank has enqueued outside graphs.
  void Wait() const {
    for (const auto& [number, channel] : by_number) {
      if (channel.enqueued) channel.done.Synchronize();
    }
  }

  std::map<int, Channel> by_number;
};

// Freeing an ExportedMemory waits for no kernel. cuMemFree would wait for all work of this process
// on the GPU. That work may include a kernel of another rank that waits for a kernel of this rank.
class GroupMemory : public Memory {
 public:
  GroupMemory(
      std::shared_ptr<Channels> channels, std::shared_ptr<ExportedMemory> memory, uint64_t bytes)
      : Memory(memory == nullptr ? nullptr : memory->data(), bytes),
        channels_(std::move(channels)),
        memory_(std::move(memory)) {}
  ~GroupMemory() override { channels_->Wait(); }

 private:
  std::shared_ptr<Channels> channels_;
  std::shared_ptr<ExportedMemory> memory_;
};

class CudaIpcGroup : public HostGroup {
 public:
  CudaIpcGroup(Communicator& host, const gpu::Device& device, std::vector<std::string> hosts)
      : host_(host), device_(device), peers_(host, device), hosts_(std::move(hosts)) {
    uint64_t blocks = 0;
    AgreeOn(host, [&] {
      // A kernel cannot be loaded while a graph is captured, so load it now.
      if (!hosts_.empty()) VerdictKernels().Find(device, "dtrun_hear_hosts");
      reports_ = PinnedBlock(device, ReportCount() * sizeof(Report));
      std::fill_n(reports(), ReportCount(), Report{});
      blocks = BlocksAtOnce(device, peers_.ranks_of_gpu());
    });
    Counts all(static_cast<size_t>(host.size()));
    host.AllGather(Buffer(&blocks, 1), Buffer(all.data(), all.size()));
    most_blocks_ = static_cast<uint32_t>(*std::min_element(all.begin(), all.end()));
    watch_ = std::make_unique<Watch>(reports(), static_cast<int>(ReportCount()), host.engine());
  }

  // The watch still runs here. It ends a wait for a rank that does not come.
  ~CudaIpcGroup() override { channels_->Wait(); }

  const char* backend() const override { return "cuda_ipc"; }
  int device() const override { return device_.index(); }

  void Enqueue(const Collective& collective) override {
    Check();
    peers_.log().Write(++calls_, collective);
    const auto stream = static_cast<CUstream>(StreamOf(collective, host_.rank()));
    if (collective.kind == CollectiveKind::kSend || collective.kind == CollectiveKind::kReceive) {
      EnqueueMessage(collective, stream);
    } else {
      const Plan plan = MakePlan(collective, host_.rank(), host_.size(), most_blocks_);
      Launch(ForCollectives(), collective, plan, stream);
    }
  }

  void EnqueueStep(const Collective& step, const Collective& whole, uint64_t signature) override {
    peers_.log().Write(++calls_, whole);
    Plan plan = MakePlan(step, host_.rank(), host_.size(), most_blocks_);
    plan.args.signature ^= signature;
    Launch(ForCollectives(), step, plan, static_cast<CUstream>(StreamOf(step, host_.rank())));
  }

  void TellHosts(void* state, uint64_t signature, CUstream stream) override {
    LaunchVerdict("dtrun_tell_hosts", state, signature, stream);
  }

  void HearHosts(const void* states, uint64_t signature, CUstream stream) override {
    LaunchVerdict("dtrun_hear_hosts", const_cast<void*>(states), signature, stream);
  }

  void GiveUp() override {
    std::atomic_ref(reports()->abort).store(kTimedOut, std::memory_order_release);
  }

  void Check() override {
    if (error_ == nullptr) error_ = FindError();
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

  std::unique_ptr<Memory> Allocate(uint64_t bytes) override {
    Check();
    std::shared_ptr<ExportedMemory> memory;
    AgreeOn(host_, [&] {
      if (bytes > 0) memory = ExportedMemory::Create(device_, bytes);
    });
    return std::make_unique<GroupMemory>(channels_, std::move(memory), bytes);
  }

 private:
  // One report for collectives, and one for each direction of messages with each rank.
  size_t ReportCount() const { return 1 + 2 * static_cast<size_t>(host_.size()); }
  Report* reports() const { return reinterpret_cast<Report*>(reports_.data()); }

  // A message is a broadcast in a group of two ranks, with the sender as rank 0.
  void EnqueueMessage(const Collective& message, CUstream stream) {
    const bool sends = message.kind == CollectiveKind::kSend;
    Collective broadcast;
    broadcast.kind = CollectiveKind::kBroadcast;
    broadcast.input = broadcast.output = sends ? message.input : message.output;
    const Plan plan = MakePlan(broadcast, sends ? 0 : 1, 2, std::min(most_blocks_, kMessageBlocks));
    Launch(ForMessages(message.root, sends ? kOut : kIn), broadcast, plan, stream);
  }

  void LaunchVerdict(const char* kernel, void* states, uint64_t signature, CUstream stream) {
    static_assert(sizeof(HostState) == kStateBytes);
    VerdictArgs args = {};
    args.group = ForCollectives().group;
    args.states = static_cast<HostState*>(states);
    args.hosts = states == nullptr ? 0 : static_cast<int32_t>(hosts_.size());
    args.call = calls_;
    args.signature = signature;
    const gpu::DeviceScope scope(device_);
    VerdictKernels().Launch(device_, kernel, {.blocks = 1, .threads = 1}, stream, args);
  }

  void Launch(Channel& channel, const Collective& collective, Plan plan, CUstream stream) {
    plan.args.group = channel.group;
    plan.args.call = calls_;
    plan.args.input = static_cast<char*>(collective.input.data);
    plan.args.output = static_cast<char*>(collective.output.data);
    const gpu::DeviceScope scope(device_);
    const bool captured = gpu::IsCapturing(stream);
    if (!captured && channel.enqueued && channel.last_stream != stream) channel.done.Delay(stream);
    CollectiveKernels().Launch(
        device_, KernelOf(collective), {.blocks = plan.blocks, .threads = plan.threads}, stream,
        plan.args);
    if (captured) return;
    channel.done.Record(stream);
    channel.last_stream = stream;
    channel.enqueued = true;
  }

  Channel& ForCollectives() {
    const auto [found, made] = channels_->by_number.try_emplace(0, device_);
    Channel& channel = found->second;
    if (!made) return channel;
    channel.group.rank = host_.rank();
    channel.group.size = host_.size();
    channel.group.most_blocks = kMostBlocks;
    for (int r = 0; r < host_.size(); ++r) {
      channel.group.arenas[r] = peers_.arena(r);
    }
    channel.group.report = reports();
    return channel;
  }

  Channel& ForMessages(int peer, Direction direction) {
    const int number = 1 + 2 * peer + direction;
    const auto [found, made] = channels_->by_number.try_emplace(number, device_);
    Channel& channel = found->second;
    if (!made) return channel;
    const int ends[] = {
        direction == kOut ? host_.rank() : peer, direction == kOut ? peer : host_.rank()};
    channel.group.rank = direction;
    channel.group.size = 2;
    channel.group.most_blocks = kMessageBlocks;
    for (int r = 0; r < 2; ++r) {
      channel.group.arenas[r] = peers_.arena(ends[r]) +
                                ChannelOffset(host_.size(), ends[1 - r], static_cast<Direction>(r));
    }
    channel.group.report = reports() + number;
    return channel;
  }

  std::exception_ptr FindError() const {
    for (const auto& [number, channel] : channels_->by_number) {
      Poison& poison = channel.group.report->poison;
      const uint32_t failure = std::atomic_ref(poison.failure).load(std::memory_order_acquire);
      if (failure == kNone) continue;
      std::vector<int> ranks;
      for (int r = 0; r < channel.group.size; ++r) ranks.push_back(RankOf(number, r));
      return std::make_exception_ptr(ErrorOf(poison, failure, ranks));
    }
    return nullptr;
  }

  // The rank, in this group, of rank `rank` of channel `number`.
  int RankOf(int number, int rank) const {
    if (number == 0) return rank;
    const int peer = (number - 1) / 2, own_end = (number - 1) % 2;
    return rank == own_end ? host_.rank() : peer;
  }

  // `ranks`: the ranks of the channel, by their numbers in this group.
  Error ErrorOf(const Poison& poison, uint32_t failure, const std::vector<int>& ranks) const {
    const Members& members = host_.members();
    const CallLog& log = peers_.log();
    if (failure == kDisagreed && ranks.size() == 2 && poison.calls[0] != 0 &&
        log.IsMessage(ranks[0], poison.calls[0])) {
      return Error(
          ErrorCode::kMismatch,
          Text(
              "the ranks disagree on a message between GPUs: ", members.List({ranks[0]}),
              " called ", log.Describe(ranks[0], poison.calls[0]), "; ", members.List({ranks[1]}),
              " called ", log.Describe(ranks[1], poison.calls[1])));
    }
    if (failure == kDisagreed) {
      return Error(
          ErrorCode::kMismatch, Text(
                                    "the ranks disagree on a collective on GPUs: ",
                                    log.Disagreement(poison.calls, members)));
    }
    if (failure >= kHostsDisagreed) return ErrorAcross(poison, failure);
    std::vector<int> missing;
    for (size_t r = 0; r < ranks.size(); ++r) {
      if ((poison.missing >> r & 1) != 0) missing.push_back(ranks[r]);
    }
    const int by = ranks[poison.by];
    const std::string waited = Text(
        members.List({by}), " waited for ", members.List(missing), " to call ",
        log.Describe(by, poison.calls[poison.by]), " on a GPU");
    if (failure == kLost)
      return Error(ErrorCode::kPeerLost, Text(waited, " when the job lost a rank"));
    return Error(ErrorCode::kTimeout, Text(waited, ", and has given up"));
  }

  // The error for a failure between hosts or on another host.
  Error ErrorAcross(const Poison& poison, uint32_t failure) const {
    const int by = static_cast<int>(poison.by);
    const std::string rank = host_.members().List({by});
    const std::string called = peers_.log().Describe(by, poison.calls[by]);
    const std::string& host = hosts_[poison.missing];
    switch (failure) {
      case kHostsDisagreed:
        return Error(
            ErrorCode::kMismatch,
            Text(
                "the ranks disagree on a collective on GPUs: ", rank, " called ", called,
                "; on host ", host, ", something else was called"));
      case kDisagreedElsewhere:
        return Error(
            ErrorCode::kMismatch,
            Text(
                rank, " called ", called, " on a GPU, in which the ranks of host ", host,
                " disagree; the errors of those ranks name the difference"));
      case kFailedElsewhere:
        return Error(
            ErrorCode::kTimeout,
            Text(
                rank, " called ", called, " on a GPU, in which the ranks of host ", host,
                " have given up; the errors of those ranks name the reason"));
      default:
        return Error(
            ErrorCode::kTimeout, Text(
                                     rank, " waited for ranks of other hosts in ", called,
                                     " on a GPU, and has given up"));
    }
  }

  Communicator& host_;
  const gpu::Device& device_;
  PeerMemory peers_;
  std::shared_ptr<Channels> channels_ = std::make_shared<Channels>();
  std::vector<std::string> hosts_;  // the names of all hosts; empty if all ranks share a host
  PinnedBlock reports_;
  std::unique_ptr<Watch> watch_;
  uint32_t most_blocks_ = 1;
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
  return CreateHostGroup(host, device, {});
}

std::unique_ptr<HostGroup> CreateHostGroup(
    Communicator& host, const gpu::Device& device, std::vector<std::string> hosts) {
  return std::make_unique<CudaIpcGroup>(host, device, std::move(hosts));
}

}  // namespace dtrun::ops::cuda
