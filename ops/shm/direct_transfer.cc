// The work is cut into chunks, and each chunk belongs to a rank. Whoever has time takes a chunk, of
// its own part first and then, where it can reach all that the chunk needs, of the others': a rank
// that is busy elsewhere is not waited for. The operation has ended when every chunk is finished.
//
//   all_reduce      all inputs and outputs are mapped. Every rank owns an equal share of the
//                   elements; a chunk is combined over all inputs and stored in all outputs.
//   reduce_scatter  all inputs are mapped. A rank owns its share.
//   reduce          all inputs are mapped. The elements are shared out if the root's output is
//                   mapped too; otherwise they belong to the root.
//   the others      a chunk is a copy from one rank's input to another's output. It belongs to the
//                   destination if all inputs are mapped, otherwise, if all outputs are, to the
//                   source.

#include <algorithm>

#include "ops/shm/copy.h"
#include "ops/shm/meeting.h"

namespace dtrun::ops::shm {
namespace {

// Large enough that taking a chunk costs nothing beside its work, small enough to be shared out
// evenly and to stay in the cache while it is walked over.
constexpr uint64_t kChunkBytes = 256 << 10;
constexpr uint64_t kChunkAlignment = 64;  // elements
constexpr uint64_t kMostChunks = 1 << 20;

class DirectTransfer : public Transfer {
 public:
  explicit DirectTransfer(Meeting& meeting) : m_(meeting) {}

  Operation::Progress Advance() override {
    TaggedCounter& finished = m_.group().layout().finished(m_.sequence());
    bool advanced = false;
    for (int i = 0; i < m_.size(); ++i) {
      const int owner = (m_.rank() + i) % m_.size();
      if (owner != m_.rank() && !Shared(owner)) continue;
      const uint64_t ran = RunChunksOf(owner);
      if (ran == 0) continue;
      advanced = true;
      if (finished.Add(m_.sequence(), ran) == total_) m_.group().RingPeers();
    }
    if (total_ == 0 || finished.Reached(m_.sequence(), total_)) return Operation::Progress::kDone;
    return advanced ? Operation::Progress::kSome : Operation::Progress::kNone;
  }

 protected:
  /// To be called once the chunks are planned.
  void CountChunks() {
    for (int r = 0; r < m_.size(); ++r) total_ += ChunksOf(r);
  }

  virtual uint64_t ChunksOf(int owner) const = 0;
  /// Other ranks can run the chunks of `owner` too.
  virtual bool Shared(int owner) const = 0;
  virtual void RunChunk(int owner, uint64_t chunk) = 0;

  Meeting& m_;

 private:
  uint64_t RunChunksOf(int owner) {
    TaggedCounter& taken = m_.group().layout().taken(m_.sequence(), owner);
    const uint64_t chunks = ChunksOf(owner);
    uint64_t ran = 0;
    for (uint64_t chunk; (chunk = taken.Take(m_.sequence(), chunks)) < chunks; ++ran) {
      RunChunk(owner, chunk);
    }
    return ran;
  }

  uint64_t total_ = 0;
};

class DirectReduction : public DirectTransfer {
 public:
  explicit DirectReduction(Meeting& meeting)
      : DirectTransfer(meeting),
        outputs_mapped_(meeting.OutputsMapped()),
        arithmetic_(meeting.arithmetic()) {
    uint64_t largest = 0;
    for (int r = 0; r < m_.size(); ++r) {
      shares_.push_back(ShareOf(r));
      largest = std::max(largest, shares_.back().count);
    }
    // Every rank's share is cut into the same number of chunks, of equal size.
    const uint64_t chunks = std::clamp<uint64_t>(
        DivideUp(largest * m_.element(), kChunkBytes), 1,
        kMostChunks / static_cast<uint64_t>(m_.size()));
    arithmetic_.stores = StoresFor(largest * m_.element() * static_cast<uint64_t>(m_.size()));
    chunk_elements_ = DivideUp(DivideUp(largest, chunks), kChunkAlignment) * kChunkAlignment;
    CountChunks();
  }

 protected:
  uint64_t ChunksOf(int owner) const override {
    return DivideUp(shares_[static_cast<size_t>(owner)].count, chunk_elements_);
  }
  bool Shared(int) const override { return outputs_mapped_; }

  void RunChunk(int owner, uint64_t chunk) override {
    const Range& share = shares_[static_cast<size_t>(owner)];
    const uint64_t first = chunk * chunk_elements_;
    const uint64_t count = std::min(chunk_elements_, share.count - first);
    const uint64_t element = m_.element();
    inputs_.clear();
    outputs_.clear();
    for (int r = 0; r < m_.size(); ++r) {
      inputs_.push_back(m_.input(r) + (share.begin + first) * element);
    }
    if (m_.kind() == CollectiveKind::kAllReduce) {
      for (int r = 0; r < m_.size(); ++r) {
        outputs_.push_back(m_.output(r) + (share.begin + first) * element);
      }
    } else if (m_.kind() == CollectiveKind::kReduce) {
      outputs_.push_back(m_.output(m_.collective().root) + (share.begin + first) * element);
    } else {
      outputs_.push_back(m_.output(owner) + first * element);
    }
    Reduce(
        inputs_.data(), m_.size(), outputs_.data(), static_cast<int>(outputs_.size()), count,
        m_.collective().input.dtype, arithmetic_);
  }

 private:
  Range ShareOf(int rank) const {
    const uint64_t count = m_.calls().InputCount(rank);
    const bool root_alone = m_.kind() == CollectiveKind::kReduce && !outputs_mapped_;
    if (root_alone) return rank == m_.collective().root ? Range{0, count} : Range{};
    if (m_.kind() == CollectiveKind::kReduceScatter) return m_.calls().Share(rank);
    const auto p = static_cast<uint64_t>(m_.size()), r = static_cast<uint64_t>(rank);
    // Whole cache lines: two ranks never write to one.
    const uint64_t even = DivideUp(DivideUp(count, p), kChunkAlignment) * kChunkAlignment;
    const uint64_t begin = std::min(r * even, count);
    return {begin, std::min(even, count - begin)};
  }

  bool outputs_mapped_;
  Arithmetic arithmetic_;
  std::vector<Range> shares_;
  uint64_t chunk_elements_ = 0;
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
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

  // Destinations fetch what they can reach; otherwise sources bring it.
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

}  // namespace dtrun::ops::shm
