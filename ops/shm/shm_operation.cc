// Every collective begins alike. A rank posts what it was asked for (the fingerprint) and, if it is
// small, its data beside it; when all ranks have arrived, each compares the fingerprints. From
// there the data takes one of three ways, on which all ranks decide alike because they see the same
// fingerprints:
//
//   inline   up to kInlineBytes: the data has come with the arrival, and each rank combines all of
//   it for itself. direct   every buffer lies in one region that all ranks map. The elements are
//   cut into chunks and the chunks shared out
//            between the ranks. Whoever has time takes a chunk, of its own share first and then of
//            the others', combines it over all ranks and stores the result in all of them. A rank
//            that is busy elsewhere is not waited for.
//   staged   otherwise: in rounds, each rank copies a piece of its buffer into its staging area and
//   combines the pieces of
//            all ranks into its own buffer. Two halves alternate, so that a rank can write one
//            while its peers read the other.
//
// The combination is Reduce's balanced tree over the ranks in rank order, whoever computes it: all
// ways give the same bits.

#include "ops/shm/shm_operation.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/reduce/reduce.h"

namespace dtrun::ops::shm {
namespace {

// Large enough that taking a chunk costs nothing beside reducing it, small enough to be shared out
// evenly.
constexpr uint64_t kChunkBytes = 128 << 10;
constexpr uint64_t kChunkAlignment = 64;  // elements

Collective CollectiveOf(const Fingerprint& fingerprint) {
  return {
      .kind = static_cast<CollectiveKind>(fingerprint.kind),
      .input = Buffer(nullptr, fingerprint.count, static_cast<DType>(fingerprint.dtype)),
      .output = {},
      .op = static_cast<ReduceOp>(fingerprint.op),
      .root = fingerprint.root,
  };
}

bool SameCall(const Fingerprint& a, const Fingerprint& b) {
  return a.kind == b.kind && a.count == b.count && a.dtype == b.dtype && a.op == b.op &&
         a.root == b.root;
}

}  // namespace

ShmOperation::ShmOperation(std::shared_ptr<ShmGroup> group, const Collective& collective)
    : Operation(group->members(), group->NextSequence(), CallOf(collective, group->rank())),
      group_(std::move(group)),
      collective_(collective),
      sequence_(sequence()),
      bytes_(collective.input.bytes()) {
  if (bytes_ > kInlineBytes) location_ = group_->Locate(collective_.input.data, bytes_);
}

Operation::Progress ShmOperation::Advance() {
  switch (phase_) {
    case Phase::kPosting: return Post();
    case Phase::kArriving: return AwaitArrivals();
    case Phase::kDirect: return AdvanceDirect();
    case Phase::kStaged: return AdvanceStaged();
  }
  return Progress::kNone;
}

Operation::Progress ShmOperation::Post() {
  if (!group_->SlotFree(sequence_)) return Progress::kNone;
  const Layout& layout = group_->layout();
  const int rank = group_->rank();
  Arrival& arrival = layout.arrival(sequence_, rank);
  arrival.fingerprint = {
      .count = collective_.input.count,
      .memory_offset = location_.offset,
      .memory = location_.region == nullptr ? 0 : location_.region->id,
      .root = collective_.root,
      .kind = static_cast<uint8_t>(collective_.kind),
      .dtype = static_cast<uint8_t>(collective_.input.dtype),
      .op = static_cast<uint8_t>(collective_.op),
  };
  if (bytes_ > 0 && bytes_ <= kInlineBytes && BringsData(rank)) {
    std::memcpy(layout.inline_data(sequence_, rank), collective_.input.data, bytes_);
  }
  arrival.sequence.store(sequence_, std::memory_order_release);
  group_->RingPeers();
  phase_ = Phase::kArriving;
  return Progress::kSome;
}

Operation::Progress ShmOperation::AwaitArrivals() {
  const Layout& layout = group_->layout();
  while (arrived_ < group_->size()) {
    if (layout.arrival(sequence_, arrived_).sequence.load(std::memory_order_acquire) != sequence_) {
      return Progress::kNone;
    }
    ++arrived_;
  }
  CheckFingerprints();
  if (bytes_ <= kInlineBytes) {
    FinishInline();
    group_->Retire(sequence_);
    return Progress::kDone;
  }
  if (AllInOneRegion()) {
    PlanChunks();
    phase_ = Phase::kDirect;
  } else {
    const uint64_t element = SizeOf(collective_.input.dtype);
    round_count_ = (collective_.input.count + kStageBytes / element - 1) / (kStageBytes / element);
    phase_ = Phase::kStaged;
  }
  return Progress::kSome;
}

void ShmOperation::CheckFingerprints() const {
  std::map<std::string, std::vector<int>> calls;
  bool same = true;
  for (int r = 1; r < group_->size(); ++r) same &= SameCall(fingerprint(0), fingerprint(r));
  if (same) return;
  for (int r = 0; r < group_->size(); ++r)
    calls[ops::Describe(CollectiveOf(fingerprint(r)))].push_back(r);
  std::vector<std::string> sides;
  for (const auto& [call, ranks] : calls)
    sides.push_back(base::RankList(ranks) + " called " + call);
  group_->Retire(sequence_);
  throw Error(
      ErrorCode::kMismatch,
      base::Text("the ranks disagree on collective #", sequence_, ": ", base::Join(sides, "; ")));
}

bool ShmOperation::AllInOneRegion() const {
  for (int r = 0; r < group_->size(); ++r) {
    if (fingerprint(r).memory == 0 || fingerprint(r).memory != fingerprint(0).memory) return false;
  }
  return true;
}

bool ShmOperation::BringsData(int rank) const {
  return collective_.kind != CollectiveKind::kBroadcast || rank == collective_.root;
}

// --- inline
// ---------------------------------------------------------------------------------------------------------

void ShmOperation::FinishInline() {
  if (bytes_ == 0) return;
  const Layout& layout = group_->layout();
  const int size = group_->size();
  switch (collective_.kind) {
    case CollectiveKind::kAllReduce: {
      std::vector<const void*> inputs;
      for (int r = 0; r < size; ++r) inputs.push_back(layout.inline_data(sequence_, r));
      void* output = collective_.input.data;
      Reduce(
          inputs.data(), size, &output, 1, collective_.input.count, collective_.input.dtype,
          {.op = collective_.op});
      break;
    }
    case CollectiveKind::kBroadcast:
      std::memcpy(collective_.input.data, layout.inline_data(sequence_, collective_.root), bytes_);
      break;
    case CollectiveKind::kAllGather:
      for (int r = 0; r < size; ++r) {
        std::memcpy(
            static_cast<char*>(collective_.output.data) + static_cast<uint64_t>(r) * bytes_,
            layout.inline_data(sequence_, r), bytes_);
      }
      break;
    default: break;
  }
}

// --- direct
// ---------------------------------------------------------------------------------------------------------

char* ShmOperation::PeerBuffer(int rank) const {
  return location_.region->blocks[static_cast<size_t>(rank)]->data() +
         fingerprint(rank).memory_offset;
}

// Every rank's share is the same number of chunks, so that share r is chunks [r * per_rank, (r + 1)
// * per_rank).
void ShmOperation::PlanChunks() {
  const uint64_t size = static_cast<uint64_t>(group_->size()), count = collective_.input.count;
  const uint64_t per_rank = (bytes_ + size * kChunkBytes - 1) / (size * kChunkBytes);
  const uint64_t even = (count + size * per_rank - 1) / (size * per_rank);
  chunk_elements_ = (even + kChunkAlignment - 1) / kChunkAlignment * kChunkAlignment;
  chunks_ = size * per_rank;
}

Operation::Progress ShmOperation::AdvanceDirect() {
  TaggedCounter& finished = group_->layout().finished(sequence_);
  bool advanced = false;
  uint64_t target = static_cast<uint64_t>(group_->size());
  if (collective_.kind == CollectiveKind::kAllReduce) {
    target = chunks_;
    advanced = ReduceChunks();
  } else if (!copied_) {
    CopyFromPeers();
    copied_ = advanced = true;
    if (finished.Increment(sequence_) == target) group_->RingPeers();
  }
  if (!finished.Reached(sequence_, target)) return advanced ? Progress::kSome : Progress::kNone;
  group_->Retire(sequence_);
  return Progress::kDone;
}

bool ShmOperation::ReduceChunks() {
  const Layout& layout = group_->layout();
  const int size = group_->size();
  const uint64_t per_rank = chunks_ / static_cast<uint64_t>(size);
  bool advanced = false;
  for (int i = 0; i < size; ++i) {
    const int owner = (group_->rank() + i) % size;
    TaggedCounter& taken = layout.taken(sequence_, owner);
    for (uint64_t chunk; (chunk = taken.Take(sequence_, per_rank)) < per_rank;) {
      ReduceChunk(static_cast<uint64_t>(owner) * per_rank + chunk);
      advanced = true;
      if (layout.finished(sequence_).Increment(sequence_) == chunks_) group_->RingPeers();
    }
  }
  return advanced;
}

void ShmOperation::ReduceChunk(uint64_t chunk) {
  const uint64_t count = collective_.input.count;
  const uint64_t begin = std::min(chunk * chunk_elements_, count);
  const uint64_t end = std::min(begin + chunk_elements_, count);
  std::vector<void*> slices;
  for (int r = 0; r < group_->size(); ++r)
    slices.push_back(PeerBuffer(r) + begin * SizeOf(collective_.input.dtype));
  Reduce(
      slices.data(), group_->size(), slices.data(), group_->size(), end - begin,
      collective_.input.dtype, {.op = collective_.op});
}

void ShmOperation::CopyFromPeers() {
  if (collective_.kind == CollectiveKind::kBroadcast) {
    if (group_->rank() != collective_.root) {
      std::memcpy(collective_.input.data, PeerBuffer(collective_.root), bytes_);
    }
    return;
  }
  for (int r = 0; r < group_->size(); ++r) {
    std::memcpy(
        static_cast<char*>(collective_.output.data) + static_cast<uint64_t>(r) * bytes_,
        PeerBuffer(r), bytes_);
  }
}

// --- staged
// ---------------------------------------------------------------------------------------------------------

// The staging areas belong to one operation at a time, oldest first on every rank. Their rounds are
// numbered through all operations of the group, so a half is free once every rank has read the
// round before last.
Operation::Progress ShmOperation::AdvanceStaged() {
  if (!group_->IsOldest(sequence_)) return Progress::kNone;
  if (staged_ == 0 && consumed_ == 0) first_round_ = group_->rounds;
  bool advanced = false;
  for (bool more = true; more;) {
    const bool staged = StageRound();
    const bool consumed = ConsumeRound();
    more = staged || consumed;
    if (more) group_->RingPeers();
    advanced |= more;
  }
  if (consumed_ < round_count_) return advanced ? Progress::kSome : Progress::kNone;
  group_->rounds += round_count_;
  group_->Retire(sequence_);
  return Progress::kDone;
}

bool ShmOperation::StageRound() {
  if (staged_ == round_count_ || staged_ > consumed_ + 1) return false;
  const Layout& layout = group_->layout();
  const uint64_t round = first_round_ + staged_;
  if (BringsData(group_->rank())) {
    for (int r = 0; r < group_->size(); ++r) {
      if (layout.consumed(r).value.load(std::memory_order_acquire) + 1 < round) return false;
    }
    const uint64_t begin = staged_ * kStageBytes;
    std::memcpy(
        layout.staging(group_->rank(), round),
        static_cast<const char*>(collective_.input.data) + begin,
        std::min(kStageBytes, bytes_ - begin));
  }
  ++staged_;
  layout.staged(group_->rank()).value.store(round + 1, std::memory_order_release);
  return true;
}

bool ShmOperation::ConsumeRound() {
  if (consumed_ == staged_) return false;
  const Layout& layout = group_->layout();
  const int size = group_->size();
  const uint64_t round = first_round_ + consumed_;
  for (int r = 0; r < size; ++r) {
    if (BringsData(r) && layout.staged(r).value.load(std::memory_order_acquire) <= round)
      return false;
  }

  const uint64_t begin = consumed_ * kStageBytes, bytes = std::min(kStageBytes, bytes_ - begin);
  char* mine = static_cast<char*>(collective_.input.data) + begin;
  if (collective_.kind == CollectiveKind::kAllReduce) {
    std::vector<const void*> inputs;
    // What this rank staged is still in its own buffer, which is also where the result goes.
    for (int r = 0; r < size; ++r)
      inputs.push_back(r == group_->rank() ? mine : layout.staging(r, round));
    void* output = mine;
    const DType dtype = collective_.input.dtype;
    Reduce(inputs.data(), size, &output, 1, bytes / SizeOf(dtype), dtype, {.op = collective_.op});
  } else if (collective_.kind == CollectiveKind::kBroadcast) {
    if (group_->rank() != collective_.root)
      std::memcpy(mine, layout.staging(collective_.root, round), bytes);
  } else {
    char* output = static_cast<char*>(collective_.output.data) + begin;
    for (int r = 0; r < size; ++r) {
      std::memcpy(output + static_cast<uint64_t>(r) * bytes_, layout.staging(r, round), bytes);
    }
  }
  ++consumed_;
  layout.consumed(group_->rank()).value.store(round + 1, std::memory_order_release);
  return true;
}

// --- for people
// -----------------------------------------------------------------------------------------------------

std::vector<int> ShmOperation::Missing() const {
  std::vector<int> missing;
  for (int r = 0; r < group_->size(); ++r) {
    if (group_->layout().arrival(sequence_, r).sequence.load(std::memory_order_acquire) < sequence_)
      missing.push_back(r);
  }
  return missing;
}

}  // namespace dtrun::ops::shm
