// MakePlan turns a collective into the arguments of its kernel: the pieces to move, or the part
// and the tree of a reduction. Watch polls the reports of kernels and ends waits that take too
// long. CallLog keeps the last calls of each rank.
#include "ops/cuda/kernel_call.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

#include "base/text.h"

namespace dtrun::ops::cuda {
namespace {

class Digest {
 public:
  void Add(uint64_t value) {
    // The finaliser of splitmix64.
    uint64_t x = digest_ ^ value;
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    digest_ = x ^ (x >> 31);
  }
  void Add(double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    Add(bits);
  }
  void Add(const Counts& counts) {
    Add(counts.size());
    for (const uint64_t count : counts) Add(count);
  }
  uint64_t value() const { return digest_; }

 private:
  uint64_t digest_ = 0;
};

DType DTypeOf(const Collective& c, int rank) {
  return UsesInput(c, rank) ? c.input.dtype : c.output.dtype;
}

class Planner {
 public:
  Planner(const Collective& collective, int rank, int size, uint32_t most_blocks)
      : c_(collective), rank_(rank), size_(size), most_blocks_(most_blocks) {}

  Plan Make() {
    CollectiveArgs& args = plan_.args;
    args.piece_bytes = kStageBytes;
    if (Combines(c_.kind)) {
      PlanReduction();
    } else {
      PlanMoves();
    }
    args.signature = SignatureOf(c_, rank_, size_);
    // Small calls need few threads, and large calls lose little by using all of them.
    const uint64_t of_a_block = (work_ / plan_.blocks + 15) / 16;
    while (plan_.threads < kMostThreads && plan_.threads < of_a_block) plan_.threads *= 2;
    return plan_;
  }

 private:
  uint64_t element() const { return SizeOf(DTypeOf(c_, rank_)); }

  // `bytes` must be the same on all ranks.
  void SetBlocks(uint64_t bytes) {
    const uint64_t wanted = (bytes + 16 * kMostThreads - 1) / (16 * kMostThreads);
    plan_.blocks = static_cast<uint32_t>(std::clamp<uint64_t>(wanted, 1, most_blocks_));
  }

  Piece PieceOf(Range elements) const {
    return {elements.begin * element(), elements.count * element()};
  }

  void PlanReduction() {
    CollectiveArgs& args = plan_.args;
    const uint64_t bytes = c_.input.bytes();
    work_ = args.bytes = args.most = bytes;
    SetBlocks(bytes);
    args.op = static_cast<int32_t>(c_.op);
    args.divisor = c_.divisor == 0 ? size_ : c_.divisor;
    args.before = c_.scale.before;
    args.after = c_.scale.after;
    args.scaled = args.before != 1 || args.after != 1;
    CountCombines(0, size_, args.combines);
    if (c_.kind != CollectiveKind::kReduceScatter) {
      args.wanted = {0, UsesOutput(c_, rank_) ? bytes : 0};
    } else {
      const Counts own =
          c_.send_counts.empty() ? DealRows(c_.input.count, 1, size_) : c_.send_counts;
      const uint64_t before = std::accumulate(own.begin(), own.begin() + rank_, uint64_t{0});
      args.wanted = PieceOf({before, own[static_cast<size_t>(rank_)]});
    }
  }

  void PlanMoves() {
    CollectiveArgs& args = plan_.args;
    for (int r = 0; r < size_; ++r) {
      args.sends[r] = PieceOf(SentTo(c_, rank_, size_, r));
      args.receives[r] = PieceOf(ReceivedFrom(c_, rank_, size_, r));
      if (r != rank_) args.most = std::max(args.most, args.sends[r].bytes);
    }
    if (base::TraitsOf(c_.kind).does != base::CollectiveTraits::Does::kMove) return;
    if (c_.kind == CollectiveKind::kBroadcast || c_.kind == CollectiveKind::kAllGather) {
      args.same_for_all = 1;
      work_ = PieceOf({0, c_.input.count}).bytes;
      for (int r = 0; r < size_; ++r) work_ = std::max(work_, args.receives[r].bytes);
      SetBlocks(work_);
    } else {
      CheckCounts();
    }
  }

  // Only the two ranks of a transfer know its count.
  void CheckCounts() {
    plan_.args.checks_counts = 1;
    plan_.args.piece_bytes = kStageBytes / static_cast<uint64_t>(size_) / 16 * 16;
    plan_.blocks = std::min(most_blocks_, 32u);
    work_ = std::max(c_.input.bytes(), c_.output.bytes());
  }

  const Collective& c_;
  int rank_, size_;
  uint32_t most_blocks_;
  uint64_t work_ = 0;  // bytes
  Plan plan_;
};

}  // namespace

// The digest covers the fields that Calls::Agree compares.
uint64_t SignatureOf(const Collective& c, int rank, int size) {
  const bool typed = !base::OnlyMeets(c.kind);
  Digest digest;
  digest.Add(static_cast<uint64_t>(c.kind));
  digest.Add(static_cast<uint64_t>(typed ? DTypeOf(c, rank) : DType::kF32));
  digest.Add(static_cast<uint64_t>(c.op));
  digest.Add(static_cast<uint64_t>(c.root));
  digest.Add(static_cast<uint64_t>(c.divisor));
  digest.Add(c.scale.before);
  digest.Add(c.scale.after);
  if (Combines(c.kind)) {
    digest.Add(c.input.count);
    digest.Add(c.send_counts);
  } else if (c.kind == CollectiveKind::kBroadcast) {
    digest.Add(c.input.count);
  } else if (c.kind == CollectiveKind::kAllGather) {
    for (int r = 0; r < size; ++r) digest.Add(ReceivedFrom(c, rank, size, r).count);
  }
  return digest.value();
}

void CountCombines(int first, int count, uint8_t* combines) {
  if (count == 1) return;
  const int left = count - count / 2;
  CountCombines(first, left, combines);
  CountCombines(first + left, count - left, combines);
  ++combines[first + count - 1];
}

Plan MakePlan(const Collective& collective, int rank, int size, uint32_t most_blocks) {
  return Planner(collective, rank, size, most_blocks).Make();
}

namespace {

uint32_t Load(uint32_t& word) { return std::atomic_ref(word).load(std::memory_order_acquire); }

}  // namespace

Watch::Watch(Report* reports, int count, const Engine* engine)
    : reports_(reports), seen_(static_cast<size_t>(count)), engine_(engine) {
  if (engine_ != nullptr) thread_ = std::thread([this] { Run(); });
}

Watch::~Watch() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watch::Run() {
  const base::Duration pause =
      std::min<base::Duration>(engine_->options().timeout / 8, std::chrono::milliseconds(100));
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, pause, [&] { return ends_; })) {
    const base::TimePoint now = engine_->clock().Now();
    for (size_t i = 0; i < seen_.size(); ++i) Look(reports_[i], seen_[i], now);
  }
}

void Watch::Look(Report& report, Seen& seen, base::TimePoint now) const {
  const uint32_t ended = Load(report.ended), begun = Load(report.begun);
  if (begun == ended || begun != seen.begun) seen.since = now;
  seen.begun = begun;
  if (begun == ended) return;
  Failure failure = kNone;
  if (now - seen.since >= engine_->options().timeout) failure = kTimedOut;
  if (engine_->gave_up()) failure = kLost;
  if (failure != kNone) std::atomic_ref(report.abort).store(failure, std::memory_order_release);
}

using base::Text;

struct CallLog::Entry {
  uint32_t number;
  base::Call call;
  uint64_t sends[kMostRanks], receives[kMostRanks];
};

struct CallLog::Page {
  Entry entries[kKept];
};

CallLog::CallLog(std::vector<std::shared_ptr<Segment>> segments, int rank)
    : segments_(std::move(segments)), rank_(rank) {}

uint64_t CallLog::Bytes() { return sizeof(Page); }

CallLog::Page& CallLog::page(int rank) const {
  return *reinterpret_cast<Page*>(segments_[static_cast<size_t>(rank)]->data());
}

void CallLog::Write(uint32_t number, const Collective& collective) {
  Entry& entry = page(rank_).entries[number % kKept];
  std::atomic_ref(entry.number).store(0, std::memory_order_release);
  entry.call = CallOf(collective, rank_);
  std::copy(collective.send_counts.begin(), collective.send_counts.end(), entry.sends);
  std::copy(collective.receive_counts.begin(), collective.receive_counts.end(), entry.receives);
  std::atomic_ref(entry.number).store(number, std::memory_order_release);
}

const CallLog::Entry* CallLog::Find(int rank, uint32_t number) const {
  Entry& entry = page(rank).entries[number % kKept];
  const bool there = std::atomic_ref(entry.number).load(std::memory_order_acquire) == number;
  return there && number != 0 ? &entry : nullptr;
}

std::string CallLog::Disagreement(const uint32_t* numbers, const Members& members) const {
  const auto size = static_cast<int>(segments_.size());
  std::vector<Called> called;
  for (int r = 0; r < size; ++r) {
    const Entry* entry = Find(r, numbers[r]);
    if (entry == nullptr)
      return Text(members.List({r}), " called something more than ", kKept, " calls ago");
    const uint8_t tables = entry->call.tables;
    called.push_back(
        {&entry->call, (tables & base::Call::kSends) != 0 ? entry->sends : nullptr,
         (tables & base::Call::kReceives) != 0 ? entry->receives : nullptr});
  }
  return Calls(called.data(), size).Disagreement(members);
}

bool CallLog::IsMessage(int rank, uint32_t number) const {
  const Entry* entry = Find(rank, number);
  return entry != nullptr && base::IsMessage(static_cast<base::CollectiveKind>(entry->call.kind));
}

std::string CallLog::Describe(int rank, uint32_t number) const {
  const Entry* entry = Find(rank, number);
  return entry == nullptr ? Text("call ", number) : base::Describe(entry->call);
}

}  // namespace dtrun::ops::cuda
