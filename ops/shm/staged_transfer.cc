// In rounds: each rank copies a piece of its input into its staging area, and takes what it needs
// from the pieces of the others. kStages rounds may be under way, so that a rank can write one
// while its peers read others; the areas stay in the cache.
//
//   all_reduce, reduce   A round covers one run of elements, cut into a slice per rank. A rank
//                        stages the others' slices, combines its own over all ranks, publishes the
//                        result, and collects those of the others.
//   reduce_scatter       A round takes one slice of every rank's share; each combines its own.
//   all_to_all, scatter  A round takes one slice of what goes to every rank.
//   all_gather, gather,  What a rank stages is for all who want it.
//   broadcast
//
// The staging areas belong to one operation at a time, oldest first on every rank. Their rounds are
// numbered through all operations of the group, so a part is free once every rank has consumed the
// round kStages before.

#include <algorithm>

#include "ops/shm/copy.h"
#include "ops/shm/meeting.h"

namespace dtrun::ops::shm {
namespace {

constexpr uint64_t kSliceAlignment = 64;  // elements

// Two ranks on two cores work in lock step and profit from their second-level caches; the more
// ranks there are, the more often one waits for a core, so each round should carry more.
uint64_t StageBytes(int size) { return size == 2 ? 256 << 10 : kMostStageBytes; }

class StagedTransfer : public Transfer {
 public:
  explicit StagedTransfer(Meeting& meeting)
      : m_(meeting),
        layout_(meeting.group().layout()),
        rank_(meeting.rank()),
        size_(meeting.size()),
        // How far this rank runs ahead of the others is its own affair.
        ahead_(meeting.group().crowded() ? kStages : 2),
        stores_(StoresFor(meeting.collective().output.bytes())) {
    const uint64_t elements = StageBytes(size_) / m_.element();
    slice_ = ForAll() ? elements : elements / Size() / kSliceAlignment * kSliceAlignment;
    for (int s = 0; s < size_; ++s) {
      for (int d = 0; d < size_; ++d) rounds_ = std::max(rounds_, RoundsFor(s, d));
    }
  }

  Operation::Progress Advance() override {
    ShmGroup& group = m_.group();
    if (!group.IsOldest(m_.sequence())) return Operation::Progress::kNone;
    if (!begun_) first_round_ = group.rounds;
    begun_ = true;
    bool advanced = false;
    for (bool more = true; more;) {
      more = Stage();
      more |= Combine();
      more |= Consume();
      if (more) group.RingPeers();
      advanced |= more;
    }
    if (consumed_ < rounds_) {
      return advanced ? Operation::Progress::kSome : Operation::Progress::kNone;
    }
    group.rounds += rounds_;
    return Operation::Progress::kDone;
  }

 private:
  uint64_t Size() const { return static_cast<uint64_t>(size_); }
  CollectiveKind kind() const { return m_.kind(); }
  bool Combining() const { return Combines(kind()); }
  // Results are published and collected.
  bool Collecting() const { return Combining() && kind() != CollectiveKind::kReduceScatter; }
  // A rank stages one slice that all may read, instead of one for each rank.
  bool ForAll() const {
    return kind() == CollectiveKind::kAllGather || kind() == CollectiveKind::kGather ||
           kind() == CollectiveKind::kBroadcast;
  }
  bool Brings(int rank) const { return m_.calls().InputCount(rank) > 0; }

  // All that `source` sends to `destination`, as elements of its input.
  Range Whole(int source, int destination) const {
    if (kind() == CollectiveKind::kReduceScatter) return m_.calls().Share(destination);
    if (Collecting()) return {0, m_.calls().InputCount(source)};
    return m_.calls().InInput(source, destination);
  }

  uint64_t RoundsFor(int source, int destination) const {
    return DivideUp(Whole(source, destination).count, Collecting() ? slice_ * Size() : slice_);
  }

  // What `source` sends to `destination` in one round, as elements of its input.
  Range Slice(int source, int destination, uint64_t round) const {
    const Range whole = Whole(source, destination);
    if (Collecting()) {
      const uint64_t begin = std::min(round * slice_ * Size(), whole.count);
      const uint64_t piece = std::min(slice_ * Size(), whole.count - begin);
      const uint64_t even = DivideUp(DivideUp(piece, Size()), kSliceAlignment) * kSliceAlignment;
      const uint64_t offset = std::min(even * static_cast<uint64_t>(destination), piece);
      return {begin + offset, std::min(even, piece - offset)};
    }
    const uint64_t offset = std::min(round * slice_, whole.count);
    return {whole.begin + offset, std::min(slice_, whole.count - offset)};
  }

  char* Staging(int source, int destination, uint64_t round) const {
    const uint64_t slice = ForAll() ? 0 : slice_ * static_cast<uint64_t>(destination);
    return layout_.staging(source, first_round_ + round) + slice * m_.element();
  }

  char* Input() const { return static_cast<char*>(m_.collective().input.data); }
  char* Output() const { return static_cast<char*>(m_.collective().output.data); }

  // Every rank (that `counts`) has got through `round`.
  template <typename Ranks>
  bool AllPast(Counter& (Layout::*counter)(int) const, uint64_t round, const Ranks& counts) const {
    for (int r = 0; r < size_; ++r) {
      if (!counts(r)) continue;
      const uint64_t past = (layout_.*counter)(r).value.load(std::memory_order_acquire);
      if (past <= first_round_ + round) return false;
    }
    return true;
  }
  static bool Everyone(int) { return true; }

  void Publish(Counter& counter, uint64_t round) {
    counter.value.store(first_round_ + round + 1, std::memory_order_release);
  }

  bool PartFree(uint64_t round) const {
    const uint64_t absolute = first_round_ + round;
    for (int r = 0; r < size_; ++r) {
      const uint64_t past = layout_.consumed(r).value.load(std::memory_order_acquire);
      if (past + kStages <= absolute) return false;
    }
    return true;
  }

  bool Stage() {
    if (staged_ == rounds_ || staged_ >= consumed_ + ahead_) return false;
    if (Brings(rank_)) {
      if (!PartFree(staged_)) return false;
      const int slices = ForAll() ? 1 : size_;
      for (int i = 0; i < slices; ++i) {
        const int destination = ForAll() ? Reader() : i;
        if (!ForAll() && destination == rank_) continue;
        const Range slice = Slice(rank_, destination, staged_);
        Copy(
            Staging(rank_, destination, staged_), Input() + slice.begin * m_.element(),
            slice.count * m_.element(), Stores::kCached);
      }
    }
    Publish(layout_.staged(rank_), staged_++);
    return true;
  }

  // Someone who reads what this rank stages for all.
  int Reader() const { return kind() == CollectiveKind::kGather ? m_.collective().root : 0; }

  bool Combine() {
    if (!Combining() || combined_ == staged_) return false;
    if (!AllPast(&Layout::staged, combined_, Everyone)) return false;
    const Range slice = Slice(rank_, rank_, combined_);
    std::vector<const void*> inputs;
    for (int r = 0; r < size_; ++r) {
      inputs.push_back(
          r == rank_ ? Input() + slice.begin * m_.element() : Staging(r, rank_, combined_));
    }
    std::vector<void*> outputs;
    if (Collecting()) outputs.push_back(Staging(rank_, rank_, combined_));
    if (UsesOutput(m_.collective(), rank_)) {
      const uint64_t base = Collecting() ? 0 : Whole(rank_, rank_).begin;
      outputs.push_back(Output() + (slice.begin - base) * m_.element());
    }
    Reduce(
        inputs.data(), size_, outputs.data(), static_cast<int>(outputs.size()), slice.count,
        m_.collective().input.dtype, m_.arithmetic());
    Publish(layout_.combined(rank_), combined_++);
    return true;
  }

  bool Consume() {
    if (consumed_ == (Combining() ? combined_ : staged_)) return false;
    if (Collecting()) {
      if (UsesOutput(m_.collective(), rank_)) {
        if (!AllPast(&Layout::combined, consumed_, Everyone)) return false;
        Collect();
      }
    } else if (!Combining()) {
      const auto brings = [this](int r) { return Brings(r); };
      if (!AllPast(&Layout::staged, consumed_, brings)) return false;
      Take();
    }
    Publish(layout_.consumed(rank_), consumed_++);
    return true;
  }

  void Collect() {
    for (int i = 1; i < size_; ++i) {
      const int owner = (rank_ + i) % size_;
      const Range slice = Slice(owner, owner, consumed_);
      Copy(
          Output() + slice.begin * m_.element(), Staging(owner, owner, consumed_),
          slice.count * m_.element(), stores_);
    }
  }

  void Take() {
    for (int i = 0; i < size_; ++i) {
      const int source = (rank_ + i) % size_;
      if (kind() == CollectiveKind::kBroadcast && rank_ == m_.collective().root) continue;
      const Range slice = Slice(source, rank_, consumed_);
      const uint64_t done = slice.begin - Whole(source, rank_).begin;
      const char* from = source == rank_ ? Input() + slice.begin * m_.element()
                                         : Staging(source, rank_, consumed_);
      Copy(
          Output() + (m_.calls().InOutput(source, rank_).begin + done) * m_.element(), from,
          slice.count * m_.element(), stores_);
    }
  }

  Meeting& m_;
  const Layout& layout_;
  int rank_, size_;
  uint64_t ahead_;
  Stores stores_;
  uint64_t slice_ = 0;  // elements
  uint64_t rounds_ = 0;
  bool begun_ = false;
  uint64_t first_round_ = 0;
  uint64_t staged_ = 0, combined_ = 0, consumed_ = 0;  // rounds of this operation
};

}  // namespace

std::unique_ptr<Transfer> MakeStagedTransfer(Meeting& meeting) {
  return std::make_unique<StagedTransfer>(meeting);
}

}  // namespace dtrun::ops::shm
