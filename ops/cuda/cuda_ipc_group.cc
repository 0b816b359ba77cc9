// A call goes in rounds through the staging memory of all ranks, kStageBytes on each GPU:
//
//   - Each rank copies a piece of its input into its own staging memory.
//   - The ranks meet (collectives.cu).
//   - Each rank copies pieces from the other ranks' staging memory, or reduces a piece of all
//     ranks' staging memory, into its output.
//   - The ranks meet again before the staging memory is written anew.
//
// All of this is enqueued into the caller's stream. The hosts do not wait for each other: the first
// meeting of a call compares the calls.

#include "ops/cuda/cuda_ipc_group.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/process.h"
#include "base/text.h"
#include "dtrun/error.h"
#include "gpu/stream.h"
#include "ops/communicator/communicator_base.h"
#include "ops/communicator/communicator_setup.h"
#include "ops/cuda/host_staged_group.h"
#include "ops/cuda/peer_memory.h"
#include "ops/engine/progress_engine.h"

namespace dtrun::ops::cuda {
namespace {

using base::Text;

// An arena of a rank: its meetings, then its staging memory for collectives or for messages.
constexpr uint64_t kMeetingsBytes = 8192;
constexpr uint64_t kStageBytes = 8 << 20, kMessageBytes = 248 << 10;
static_assert(sizeof(Meetings) <= kMeetingsBytes);

// Ends the waits of this rank's kernels, from its own thread, if a meeting lasts too long or the
// job has lost a rank. It also watches kernels in graphs, because it reads only the reports that
// kernels write themselves.
class Watch {
 public:
  Watch(MeetReport* reports, size_t count, const Engine& engine)
      : reports_(reports), seen_(count), engine_(engine) {}
  ~Watch() {
    {
      std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  static uint32_t Load(uint32_t& word) {
    return std::atomic_ref(word).load(std::memory_order_acquire);
  }

 private:
  // The last observation of one report: the meeting under way, and since when.
  struct Seen {
    uint32_t begun = 0;
    base::TimePoint since = {};
  };

  void Run() {
    const base::Duration pause =
        std::min<base::Duration>(engine_.options().timeout / 8, std::chrono::milliseconds(100));
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, pause, [&] { return ends_; })) {
      const base::TimePoint now = engine_.clock().Now();
      for (size_t i = 0; i < seen_.size(); ++i) Look(reports_[i], seen_[i], now);
    }
  }

  void Look(MeetReport& report, Seen& seen, base::TimePoint now) const {
    const uint32_t ended = Load(report.ended), begun = Load(report.begun);
    if (begun == ended || begun != seen.begun) seen.since = now;
    seen.begun = begun;
    if (begun == ended) return;
    Failure failure = kNone;
    if (now - seen.since >= engine_.options().timeout) failure = kTimedOut;
    if (engine_.gave_up()) failure = kLost;
    if (failure != kNone) std::atomic_ref(report.abort).store(failure, std::memory_order_release);
  }

  MeetReport* reports_;
  std::vector<Seen> seen_;
  const Engine& engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;  // guarded by mutex_
  std::thread thread_{[this] { Run(); }};
};

// The ranks that take part in the same calls, in order: all ranks of a host, or the two ranks of
// the messages from one to the other.
struct Channel {
  explicit Channel(const gpu::Device& device) : done(device) {}

  int rank() const { return meet.rank; }
  int size() const { return meet.size; }
  uint32_t* failure() const { return &meet.meetings[meet.rank]->poison.failure; }

  MeetArgs meet = {};        // with the ranks' numbers in the channel
  char* stages[kMostRanks];  // by rank
  uint64_t stage_bytes = 0;
  gpu::Event done;  // after the last call that was enqueued outside a graph
  CUstream last_stream = nullptr;
};

// The channels of a group, by the number of the report. Memory from the group may outlive the
// group, and keeps them.
struct Channels {
  // Waits for all calls that this rank has enqueued outside graphs. For destructors: if a GPU has
  // failed, its next call says so.
  void Wait() const {
    for (const auto& [number, channel] : by_number) {
      try {
        channel.done.Synchronize();
      } catch (const Error&) {
      }
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

// One call of this rank in a channel, as it is enqueued.
class Call {
 public:
  // `state`: as in Told.
  Call(
      const gpu::Device& device, const Channel& channel, const Collective& collective,
      uint32_t number, uint64_t state, CUstream stream)
      : device_(device), ch_(channel), c_(collective), state_(state), stream_(stream) {
    meet_ = ch_.meet;
    meet_.call = number;
    copy_.failure = ch_.failure();
  }

  void Enqueue() {
    if (Combines(c_.kind)) return Combine();
    if (base::OnlyMeets(c_.kind)) return Meet();
    const bool same_for_all =
        c_.kind == CollectiveKind::kBroadcast || c_.kind == CollectiveKind::kAllGather;
    same_for_all ? Spread() : Exchange();
  }

 private:
  int rank() const { return ch_.rank(); }
  int size() const { return ch_.size(); }
  uint32_t others() const {
    return static_cast<uint32_t>((uint64_t{1} << size()) - 1) & ~(1u << rank());
  }

  // The first meeting of a call also compares the calls.
  void Meet() { Meet(others(), others()); }
  void Meet(uint32_t tells, uint32_t hears) {
    meet_.tells = tells;
    meet_.hears = hears;
    meet_.state = std::exchange(state_, 0);
    if (size() > 1)
      collective_kernels.Launch(
          device_, "dtrun_meet", {.blocks = 1, .threads = kMostRanks}, stream_, meet_);
  }

  void Add(void* to, const void* from, uint64_t bytes) {
    if (bytes == 0 || to == from) return;
    copy_.pieces[copy_.count++] = {static_cast<char*>(to), static_cast<const char*>(from), bytes};
    copied_ = std::max(copied_, bytes);
  }
  // Enqueues the copies that were added.
  void Copy() {
    constexpr uint32_t kThreads = 256, kMostBlocks = 512;
    const uint64_t words = std::exchange(copied_, 0) / 16 + 1;
    if (copy_.count > 0)
      collective_kernels.Launch(
          device_, "dtrun_copy",
          {.blocks = gpu::BlocksFor(words, kThreads, kMostBlocks), .threads = kThreads}, stream_,
          copy_);
    copy_.count = 0;
  }

  // ---- reductions

  void Combine() {
    ReduceArgs args = ReduceArgsOf(c_, size(), size());
    args.failure = ch_.failure();
    std::copy_n(ch_.stages, size(), args.at);
    const Range wanted = ResultOf(c_, rank(), size());
    const uint64_t element = SizeOf(c_.input.dtype), round = ch_.stage_bytes / element;
    for (uint64_t begin = 0; begin == 0 || begin < c_.input.count; begin += round) {
      const Buffer piece = c_.input.Slice(begin, std::min(round, c_.input.count - begin));
      Add(ch_.stages[rank()], piece.data, piece.bytes());
      Copy();
      Meet();
      const uint64_t first = std::max(begin, wanted.begin);
      const uint64_t end = std::min(begin + piece.count, wanted.begin + wanted.count);
      args.offset = (first - begin) * element;
      if (first < end)
        EnqueueReduce(device_, args, c_.output.Slice(first - wanted.begin, end - first), stream_);
      Meet();
    }
  }

  // ---- data movement

  // A part of a piece that goes from rank to rank: `round` elements at most, from `begin`.
  static Buffer PartOf(const Buffer& buffer, Range piece, uint64_t begin, uint64_t round) {
    if (begin >= piece.count) return Buffer();
    return buffer.Slice(piece.begin + begin, std::min(round, piece.count - begin));
  }

  Range From(int rank) const { return ReceivedFrom(c_, ch_.rank(), size(), rank); }
  Range To(int rank) const { return SentTo(c_, ch_.rank(), size(), rank); }

  // Adds the part that stays on this rank.
  void Keep() {
    const Buffer kept = PartOf(c_.output, From(rank()), 0, UINT64_MAX);
    Add(kept.data, PartOf(c_.input, To(rank()), 0, UINT64_MAX).data, kept.bytes());
  }

  // Every other rank gets the same piece of this rank. All ranks know all counts.
  void Spread() {
    const uint64_t element = SizeOf(UsesInput(c_, rank()) ? c_.input.dtype : c_.output.dtype);
    const uint64_t round = ch_.stage_bytes / element;
    const Range sent = To((rank() + 1) % size());
    uint64_t most = sent.count;
    for (int r = 0; r < size(); ++r) most = std::max(most, From(r).count);
    for (uint64_t begin = 0; begin == 0 || begin < most; begin += round) {
      if (size() > 1) {
        const Buffer part = PartOf(c_.input, sent, begin, round);
        Add(ch_.stages[rank()], part.data, part.bytes());
        Copy();
      }
      Meet();
      if (begin == 0) Keep();
      for (int r = 0; r < size(); ++r) {
        if (r == rank()) continue;
        const Buffer part = PartOf(c_.output, From(r), begin, round);
        Add(part.data, ch_.stages[r], part.bytes());
      }
      Copy();
      Meet();
    }
  }

  // Only the two ranks of a piece know its count. They compare it at a first meeting. No rank
  // touches its output before the second meeting, by which all ranks know of any difference. After
  // that, only ranks that have data for each other meet. Staging memory has a slot for each rank.
  void Exchange() {
    const uint64_t element = SizeOf(UsesInput(c_, rank()) ? c_.input.dtype : c_.output.dtype);
    const uint64_t round = ch_.stage_bytes / static_cast<uint64_t>(size()) / 16 * 16 / element;
    uint64_t most = 1;
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      meet_.sends[r] = To(r).count * element;
      meet_.receives[r] = From(r).count * element;
      most = std::max({most, To(r).count, From(r).count});
    }
    Meet();
    std::fill_n(meet_.sends, size(), 0);
    std::fill_n(meet_.receives, size(), 0);
    for (uint64_t begin = 0; begin < most; begin += round) {
      uint32_t readers = 0, writers = 0;
      for (int r = 0; r < size(); ++r) {
        const Buffer part = r == rank() ? Buffer() : PartOf(c_.input, To(r), begin, round);
        Add(Slot(rank(), r, round * element), part.data, part.bytes());
        if (part.count > 0) readers |= 1u << r;
      }
      Copy();
      for (int r = 0; r < size(); ++r) {
        const Buffer part = r == rank() ? Buffer() : PartOf(c_.output, From(r), begin, round);
        Add(part.data, Slot(r, rank(), round * element), part.bytes());
        if (part.count > 0) writers |= 1u << r;
      }
      begin == 0 ? Meet() : Meet(readers, writers);
      Copy();
      Meet(writers, readers);
    }
    Keep();
    Copy();
  }

  char* Slot(int owner, int reader, uint64_t bytes) const {
    return ch_.stages[owner] + static_cast<uint64_t>(reader) * bytes;
  }

  const gpu::Device& device_;
  const Channel& ch_;
  const Collective& c_;
  uint64_t state_;
  CUstream stream_;
  MeetArgs meet_ = {};
  CopyArgs copy_ = {};
  uint64_t copied_ = 0;  // bytes of the largest piece
};

class CudaIpcGroup : public HostGroup {
 public:
  CudaIpcGroup(Communicator& host, const gpu::Device& device)
      : host_(host), device_(device), peers_(host, device, ArenaOffset(1 + 2 * host.size())) {
    AgreeOn(host, [&] {
      gpu::Kernels::LoadAll(device);
      report_memory_ = PinnedBlock(device, ReportCount() * sizeof(MeetReport));
      std::fill_n(reports(), ReportCount(), MeetReport{});
    });
    if (host.engine() != nullptr)
      watch_ = std::make_unique<Watch>(reports(), ReportCount(), *host.engine());
  }

  // The watch still runs here. It ends a wait for a rank that does not come.
  ~CudaIpcGroup() override { channels_->Wait(); }

  const char* backend() const override { return "cuda_ipc"; }
  int device() const override { return device_.index(); }

  void Enqueue(const Collective& collective) override {
    Check();
    peers_.log->Write(++calls_, collective);
    if (base::IsMessage(collective.kind)) return EnqueueMessage(collective);
    EnqueueIn(
        ForCollectives(), collective, SignatureOf(collective, rank(), host_.size()),
        static_cast<CUstream>(StreamOf(collective, rank())));
  }

  void EnqueueStep(const Collective& step, const Collective& whole) override {
    peers_.log->Write(++calls_, whole);
    EnqueueIn(
        ForCollectives(), step, SignatureOf(step, rank(), host_.size()),
        static_cast<CUstream>(StreamOf(step, rank())));
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
  int rank() const { return host_.rank(); }
  // A report and an arena for collectives, and for each direction of messages with each rank.
  size_t ReportCount() const { return 1 + 2 * static_cast<size_t>(host_.size()); }
  MeetReport* reports() const { return reinterpret_cast<MeetReport*>(report_memory_.data()); }
  static uint64_t ArenaOffset(int number) {
    if (number == 0) return 0;
    return kMeetingsBytes + kStageBytes +
           static_cast<uint64_t>(number - 1) * (kMeetingsBytes + kMessageBytes);
  }

  // A message is a broadcast in a channel of two ranks, with the sender as rank 0.
  void EnqueueMessage(const Collective& message) {
    const bool sends = message.kind == CollectiveKind::kSend;
    Collective broadcast;
    broadcast.kind = CollectiveKind::kBroadcast;
    broadcast.input = broadcast.output = sends ? message.input : message.output;
    Channel& channel = ForMessages(message.root, sends);
    EnqueueIn(
        channel, broadcast, SignatureOf(broadcast, channel.rank(), 2),
        static_cast<CUstream>(StreamOf(message, rank())));
  }

  void EnqueueIn(Channel& channel, const Collective& collective, uint64_t state, CUstream stream) {
    const gpu::DeviceScope scope(device_);
    const bool captured = gpu::IsCapturing(stream);
    if (!captured && channel.last_stream != stream) channel.done.Delay(stream);
    Call(device_, channel, collective, calls_, state, stream).Enqueue();
    if (captured) return;
    channel.done.Record(stream);
    channel.last_stream = stream;
  }

  // Channel `number`. `numbers`: by rank of the channel, the rank in this group and the number of
  // the arena there.
  Channel& ChannelOf(int number, int own, const std::vector<std::pair<int, int>>& numbers) {
    const auto [found, made] = channels_->by_number.try_emplace(number, device_);
    Channel& channel = found->second;
    if (!made) return channel;
    channel.meet.rank = own;
    channel.meet.size = static_cast<int>(numbers.size());
    channel.meet.report = reports() + number;
    channel.stage_bytes = number == 0 ? kStageBytes : kMessageBytes;
    for (size_t r = 0; r < numbers.size(); ++r) {
      char* arena = peers_.arenas[static_cast<size_t>(numbers[r].first)]->data() +
                    ArenaOffset(numbers[r].second);
      channel.meet.meetings[r] = reinterpret_cast<Meetings*>(arena);
      channel.stages[r] = arena + kMeetingsBytes;
    }
    return channel;
  }

  Channel& ForCollectives() {
    std::vector<std::pair<int, int>> numbers;
    for (int r = 0; r < host_.size(); ++r) numbers.emplace_back(r, 0);
    return ChannelOf(0, rank(), numbers);
  }

  // The sender uses its arena for sends to the receiver, and the receiver that for receives.
  Channel& ForMessages(int peer, bool sends) {
    const auto number = [](int other, bool out) { return 1 + 2 * other + (out ? 0 : 1); };
    const std::pair<int, int> own = {rank(), number(peer, sends)};
    const std::pair<int, int> other = {peer, number(rank(), !sends)};
    if (sends) return ChannelOf(own.second, 0, {own, other});
    return ChannelOf(own.second, 1, {other, own});
  }

  // ---- errors

  // The rank, in this group, of rank `rank` of channel `number`.
  int RankOf(int number, int rank) const {
    if (number == 0) return rank;
    const int peer = (number - 1) / 2, own_end = (number - 1) % 2;
    return rank == own_end ? host_.rank() : peer;
  }

  std::exception_ptr FindError() const {
    for (const auto& [number, channel] : channels_->by_number) {
      Poison& poison = channel.meet.report->poison;
      const uint32_t failure = Watch::Load(poison.failure);
      if (failure == kNone) continue;
      std::vector<int> ranks;
      for (int r = 0; r < channel.size(); ++r) ranks.push_back(RankOf(number, r));
      return std::make_exception_ptr(ErrorOf(poison, failure, ranks));
    }
    return nullptr;
  }

  // `ranks`: the ranks of the channel, by their numbers in this group.
  Error ErrorOf(const Poison& poison, uint32_t failure, const std::vector<int>& ranks) const {
    const Members& members = host_.members();
    const CallLog& log = *peers_.log;
    if (failure == kDisagreed && ranks.size() == 2 && log.IsMessage(ranks[0], poison.calls[0])) {
      const auto called = [&](size_t r) {
        return Text(members.List({ranks[r]}), " called ", log.Describe(ranks[r], poison.calls[r]));
      };
      return Error(
          ErrorCode::kMismatch,
          Text("the ranks disagree on a message between GPUs: ", called(0), "; ", called(1)));
    }
    if (failure == kDisagreed) {
      const std::string what = log.Disagreement(poison.calls, members);
      return Error(
          ErrorCode::kMismatch, Text("the ranks disagree on a collective on GPUs: ", what));
    }
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

  Communicator& host_;
  const gpu::Device& device_;
  PeerMemory peers_;
  std::shared_ptr<Channels> channels_ = std::make_shared<Channels>();
  PinnedBlock report_memory_;
  std::unique_ptr<Watch> watch_;
  uint32_t calls_ = 0;
  std::exception_ptr error_;
};

}  // namespace

std::string WhyNotCudaIpc(Communicator& host, const gpu::Device& device, bool wanted) {
  if (host.size() > kMostRanks) return Text("there are more than ", kMostRanks, " ranks");
  if (!host.members().SharesHost()) return "the ranks run on several hosts";
  if (!wanted) {
    std::string turns = WhyNotAtOnce(host, device);
    if (!turns.empty()) return turns;
  }
  return WhyNotExported(device);
}

std::unique_ptr<HostGroup> CreateCudaIpcGroup(Communicator& host, const gpu::Device& device) {
  return std::make_unique<CudaIpcGroup>(host, device);
}

}  // namespace dtrun::ops::cuda
