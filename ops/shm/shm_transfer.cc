// The work is cut into chunks, and each chunk belongs to a rank. A rank takes chunks of its own
// part first. Then it takes chunks of the other ranks, if it can reach all their buffers. So a rank
// that is busy elsewhere does not delay the others. The operation ends when every chunk is
// finished.
//
//   all_reduce      all inputs and outputs are mapped. Every rank owns an equal share of the
//                   elements. A chunk is combined over all inputs and stored in all outputs.
//   reduce_scatter  all inputs are mapped. A rank owns its share.
//   reduce          all inputs are mapped. If the root's output is mapped too, all ranks share the
//                   elements. Otherwise the root owns all elements.
//   the others      a chunk is a copy from one rank's input to another rank's output. If all inputs
//                   are mapped, it belongs to the destination. Otherwise all outputs are mapped,
//                   and it belongs to the source.

#include <algorithm>
#include <utility>

#include "ops/shm/shm_layout.h"
#include "ops/shm/shm_operation.h"

namespace dtrun::ops::shm {
namespace {

// The cost of taking a chunk is small beside its work. A chunk is small enough for even shares and
// for the cache.
constexpr uint64_t kChunkBytes = 256 << 10;
constexpr uint64_t kChunkAlignment = 64;  // elements
constexpr uint64_t kMostChunks = 1 << 20;

class DirectTransfer : public Transfer {
 public:
  explicit DirectTransfer(Meeting& meeting) : m_(meeting), chunks_(meeting.size(), 0) {}

  Operation::Progress Advance() override {
    // RunChunks leaves no chunk untaken, so a rank that comes back only waits.
    const bool advanced = !std::exchange(all_taken_, true) && RunChunks();
    const TaggedCounter& finished = m_.group().layout().finished(m_.sequence());
    if (total_ == 0 || finished.Reached(m_.sequence(), total_)) return Operation::Progress::kDone;
    return advanced ? Operation::Progress::kSome : Operation::Progress::kNone;
  }

 protected:
  /// Call it when the chunks are planned.
  void CountChunks() {
    for (int r = 0; r < m_.size(); ++r) {
      chunks_[r] = ChunksOf(r);
      total_ += chunks_[r];
    }
  }

  virtual uint64_t ChunksOf(int owner) const = 0;
  /// True if other ranks can run the chunks of `owner`.
  virtual bool Shared(int owner) const = 0;
  virtual void RunChunk(int owner, uint64_t chunk) = 0;

  Meeting& m_;

 private:
  // Takes and runs chunks of this rank and of the ranks that share theirs, until none is left to
  // take. Returns false if the others had taken them all.
  bool RunChunks() {
    TaggedCounter& finished = m_.group().layout().finished(m_.sequence());
    bool ran_any = false;
    for (int i = 0; i < m_.size(); ++i) {
      const int owner = (m_.rank() + i) % m_.size();
      if (owner != m_.rank() && !Shared(owner)) continue;
      const uint64_t ran = RunChunksOf(owner);
      if (ran == 0) continue;
      ran_any = true;
      if (finished.Add(m_.sequence(), ran) == total_) m_.group().RingPeers();
    }
    return ran_any;
  }

  uint64_t RunChunksOf(int owner) {
    TaggedCounter& taken = m_.group().layout().taken(m_.sequence(), owner);
    const uint64_t chunks = chunks_[owner];
    uint64_t ran = 0;
    for (uint64_t chunk; (chunk = taken.Take(m_.sequence(), chunks)) < chunks; ++ran) {
      RunChunk(owner, chunk);
    }
    return ran;
  }

  PerRank<uint64_t> chunks_;  // by owner
  uint64_t total_ = 0;
  bool all_taken_ = false;
};

class DirectReduction : public DirectTransfer {
 public:
  explicit DirectReduction(Meeting& meeting)
      : DirectTransfer(meeting),
        outputs_mapped_(meeting.OutputsMapped()),
        arithmetic_(meeting.arithmetic()),
        shares_(meeting.size(), Range{}),
        inputs_(meeting.size(), nullptr),
        outputs_(meeting.size(), nullptr) {
    uint64_t largest = 0;
    for (int r = 0; r < m_.size(); ++r) {
      shares_[r] = ShareOf(r);
      largest = std::max(largest, shares_[r].count);
    }
    // The largest share decides the size of the chunks, which is the same for all shares.
    const uint64_t chunks = std::clamp<uint64_t>(
        DivideUp(largest * m_.element(), kChunkBytes), 1,
        kMostChunks / static_cast<uint64_t>(m_.size()));
    arithmetic_.stores = StoresFor(largest * m_.element() * static_cast<uint64_t>(m_.size()));
    chunk_elements_ = DivideUp(DivideUp(largest, chunks), kChunkAlignment) * kChunkAlignment;
    CountChunks();
  }

 protected:
  uint64_t ChunksOf(int owner) const override {
    return DivideUp(shares_[owner].count, chunk_elements_);
  }
  bool Shared(int) const override { return outputs_mapped_; }

  void RunChunk(int owner, uint64_t chunk) override {
    const Range& share = shares_[owner];
    const uint64_t first = chunk * chunk_elements_;
    const uint64_t count = std::min(chunk_elements_, share.count - first);
    const uint64_t element = m_.element();
    for (int r = 0; r < m_.size(); ++r) {
      inputs_[r] = m_.input(r) + (share.begin + first) * element;
    }
    int outputs = 1;
    if (m_.kind() == CollectiveKind::kAllReduce) {
      outputs = m_.size();
      for (int r = 0; r < outputs; ++r) {
        outputs_[r] = m_.output(r) + (share.begin + first) * element;
      }
    } else if (m_.kind() == CollectiveKind::kReduce) {
      outputs_[0] = m_.output(m_.collective().root) + (share.begin + first) * element;
    } else {
      outputs_[0] = m_.output(owner) + first * element;
    }
    Reduce(
        inputs_.data(), m_.size(), outputs_.data(), outputs, count, m_.collective().input.dtype,
        arithmetic_);
  }

 private:
  Range ShareOf(int rank) const {
    const uint64_t count = m_.calls().InputCount(rank);
    const bool root_alone = m_.kind() == CollectiveKind::kReduce && !outputs_mapped_;
    if (root_alone) return rank == m_.collective().root ? Range{0, count} : Range{};
    if (m_.kind() == CollectiveKind::kReduceScatter) return m_.calls().Share(rank);
    const auto p = static_cast<uint64_t>(m_.size()), r = static_cast<uint64_t>(rank);
    // Whole cache lines, so two ranks never write to the same line.
    const uint64_t even = DivideUp(DivideUp(count, p), kChunkAlignment) * kChunkAlignment;
    const uint64_t begin = std::min(r * even, count);
    return {begin, std::min(even, count - begin)};
  }

  bool outputs_mapped_;
  Arithmetic arithmetic_;
  PerRank<Range> shares_;
  uint64_t chunk_elements_ = 0;
  PerRank<const void*> inputs_;
  PerRank<void*> outputs_;
};

class DirectMove : public DirectTransfer {
 public:
  explicit DirectMove(Meeting& meeting)
      : DirectTransfer(meeting),
        inputs_mapped_(meeting.InputsMapped()),
        outputs_mapped_(meeting.OutputsMapped()) {
    uint64_t most = 0, largest_output = 0;
    for (int r = 0; r < m_.size(); ++r) {
      most = std::max(most, BytesOf(r));
      largest_output = std::max(largest_output, m_.calls().OutputCount(r) * m_.element());
    }
    stores_ = StoresFor(largest_output);
    chunk_bytes_ = std::max(kChunkBytes, most / kMostChunks * static_cast<uint64_t>(m_.size()));
    CountChunks();
  }

 protected:
  uint64_t ChunksOf(int owner) const override {
    uint64_t chunks = 0;
    for (int peer = 0; peer < m_.size(); ++peer) chunks += ChunksBetween(owner, peer);
    return chunks;
  }
  bool Shared(int) const override { return inputs_mapped_ && outputs_mapped_; }

  void RunChunk(int owner, uint64_t chunk) override {
    int peer = owner;
    for (uint64_t chunks; chunk >= (chunks = ChunksBetween(owner, peer)); chunk -= chunks) {
      peer = (peer + 1) % m_.size();
    }
    const auto [source, destination] = Ends(owner, peer);
    const Range from = m_.calls().InInput(source, destination);
    const Range to = m_.calls().InOutput(source, destination);
    const uint64_t begin = chunk * chunk_bytes_;
    Copy(
        m_.output(destination) + to.begin * m_.element() + begin,
        m_.input(source) + from.begin * m_.element() + begin,
        std::min(chunk_bytes_, from.count * m_.element() - begin), stores_);
  }

 private:
  struct Pair {
    int source, destination;
  };

  // If all inputs are mapped, the destination owns the copy. Otherwise the source owns it.
  Pair Ends(int owner, int peer) const {
    return inputs_mapped_ ? Pair{peer, owner} : Pair{owner, peer};
  }

  uint64_t ChunksBetween(int owner, int peer) const {
    return DivideUp(BytesBetween(owner, peer), chunk_bytes_);
  }

  uint64_t BytesBetween(int owner, int peer) const {
    const auto [source, destination] = Ends(owner, peer);
    if (m_.kind() == CollectiveKind::kBroadcast && source == destination) return 0;
    return m_.calls().InInput(source, destination).count * m_.element();
  }

  uint64_t BytesOf(int owner) const {
    uint64_t bytes = 0;
    for (int peer = 0; peer < m_.size(); ++peer) bytes += BytesBetween(owner, peer);
    return bytes;
  }

  bool inputs_mapped_, outputs_mapped_;
  uint64_t chunk_bytes_ = kChunkBytes;
  Stores stores_ = Stores::kCached;
};

}  // namespace

std::unique_ptr<Transfer> MakeDirectTransfer(Meeting& meeting) {
  const bool inputs = meeting.InputsMapped(), outputs = meeting.OutputsMapped();
  const bool combines = Combines(meeting.kind());
  const bool all_reduce = meeting.kind() == CollectiveKind::kAllReduce;
  if (all_reduce ? !(inputs && outputs) : combines ? !inputs : !(inputs || outputs)) {
    return nullptr;
  }
  meeting.Reach();
  if (combines) return std::make_unique<DirectReduction>(meeting);
  return std::make_unique<DirectMove>(meeting);
}

// A staged transfer works in rounds. In each round, a rank copies a piece of its input into its
// staging area. Then it reads the parts that it needs from the pieces of the others. kStages rounds
// may be under way, so that a rank can write one part while its peers read others. The areas stay
// in the cache.
//
//   all_reduce, reduce   A round covers one run of elements, cut into a slice per rank. A rank
//                        stages the slices of the others, combines its own slice over all ranks,
//                        publishes the result, and collects the results of the others.
//   reduce_scatter       A round covers one slice of every rank's share. Each rank combines its
//                        own slice.
//   all_to_all, scatter  A round covers one slice of the data for every rank.
//   all_gather, gather,  A rank stages one slice, which all ranks may read.
//   broadcast
//
// The staging areas belong to one operation at a time, oldest first on every rank. The rounds are
// numbered through all operations of the group. So a part is free once every rank has consumed the
// round kStages before.

namespace {

constexpr uint64_t kSliceAlignment = 64;  // elements

// Two ranks on two cores work in lock step and use their second-level caches. With more ranks, a
// rank waits for a core more often, so each round should carry more.
uint64_t StageBytes(int size) { return size == 2 ? 256 << 10 : kMostStageBytes; }

class StagedTransfer : public Transfer {
 public:
  explicit StagedTransfer(Meeting& meeting)
      : m_(meeting),
        layout_(meeting.group().layout()),
        rank_(meeting.rank()),
        size_(meeting.size()),
        // Ranks may differ in how far they run ahead.
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
  // True if results are published and collected.
  bool Collecting() const { return Combining() && kind() != CollectiveKind::kReduceScatter; }
  // True if a rank stages one slice for all readers, instead of one slice for each rank.
  bool ForAll() const {
    return kind() == CollectiveKind::kAllGather || kind() == CollectiveKind::kGather ||
           kind() == CollectiveKind::kBroadcast;
  }
  bool Brings(int rank) const { return m_.calls().InputCount(rank) > 0; }

  // All data from `source` to `destination`, as elements of the source's input.
  Range Whole(int source, int destination) const {
    if (kind() == CollectiveKind::kReduceScatter) return m_.calls().Share(destination);
    if (Collecting()) return {0, m_.calls().InputCount(source)};
    return m_.calls().InInput(source, destination);
  }

  uint64_t RoundsFor(int source, int destination) const {
    return DivideUp(Whole(source, destination).count, Collecting() ? slice_ * Size() : slice_);
  }

  // The data from `source` to `destination` in one round, as elements of the source's input.
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

  // True if every rank for which `counts` returns true has completed `round`.
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

  // A rank that reads the slice that this rank stages for all.
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
