// Every chunk is dealt to the rails: local ranks 0 to rails - 1 of each host own a shard of it, the
// others none. All rails together carry a chunk over the wire once.
//
//   all_reduce      up: reduce-scatter to the owners of the shards; across: all-reduce of each
//                   shard; down: all-gather of the shards. In place, in the output.
//   reduce          the same in staging memory, but across to the root's host and down to the root.
//   reduce_scatter  a chunk has a piece for one rank of each host. up: reduce-scatter of every
//                   piece; across: reduce-scatter between the hosts; down: the rank that owns the
//                   host's piece gathers it.
//   broadcast       up: broadcast within the root's host; across: each shard to all hosts; down:
//                   all-gather within the other hosts.
//   all_gather      a broadcast from each rank. The chunks of all broadcasts alternate, so that all
//                   hosts send all the time.
//   all_to_all, gather, scatter, and small all_gathers
//                   straight between all ranks: no byte crosses the wire twice anyway. On a flat
//                   route, reductions do the same.

#include <algorithm>
#include <cstring>

#include "dtrun/error.h"
#include "ops/collective/host_map.h"
#include "ops/hierarchical/hierarchical_group.h"
#include "ops/hierarchical/hierarchical_operation.h"

namespace dtrun::ops::hierarchical {
namespace {

constexpr uint64_t kCacheLine = 64;
// In an all_gather, inputs up to this fraction of a chunk go straight to all ranks.
constexpr uint64_t kSmallGatherPart = 128;

uint64_t CeilDivide(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// The elements of one part of a chunk, if `parts` parts travel together.
uint64_t ChunkElements(const Group& group, DType dtype, uint64_t parts = 1) {
  return std::max(group.route.chunk_bytes / parts / kCacheLine, uint64_t{1}) * kCacheLine /
         SizeOf(dtype);
}

Counts Shards(const Group& group, uint64_t count, DType dtype) {
  return DealToRails(count, dtype, group.rails(), group.local_size());
}

Range OwnShard(const Group& group, const Counts& shards) {
  Range own{0, shards[static_cast<size_t>(group.local_rank)]};
  for (int l = 0; l < group.local_rank; ++l) own.begin += shards[static_cast<size_t>(l)];
  return own;
}

bool Compressed(const Group& group, const Buffer& buffer) {
  return group.route.wire != WireDType::kNone && buffer.dtype == DType::kF32;
}

// --- all_reduce ---------------------------------------------------------------------------------

class AllReduceChunk : public Chunk {
 public:
  AllReduceChunk(Group& group, const Collective& whole, Range range)
      : group_(group),
        whole_(whole),
        input_(whole.input.Slice(range.begin, range.count)),
        output_(whole.output.Slice(range.begin, range.count)),
        shards_(Shards(group, range.count, input_.dtype)) {
    const Range own = OwnShard(group, shards_);
    shard_ = output_.Slice(own.begin, own.count);
  }

  Parts Up() override {
    const bool nothing_to_do =
        group_.local_size() == 1 && input_.data == output_.data && whole_.scale.before == 1;
    if (nothing_to_do) return {};
    return {ReduceToShards(whole_, input_, shard_, shards_)};
  }

  Parts Across() override {
    if (shard_.count == 0) return {};
    if (!Compressed(group_, shard_)) {
      return {
          CombineHosts(whole_, group_.hosts.size(), CollectiveKind::kAllReduce, shard_, shard_)};
    }
    on_wire_ = WireBuffer(group_, shard_);
    const Buffer& narrow = on_wire_.buffer();
    return {CombineHosts(whole_, group_.hosts.size(), CollectiveKind::kAllReduce, narrow, narrow)};
  }

  Parts Down() override {
    on_wire_.WidenInto(shard_);
    if (group_.local_size() == 1) return {};
    return {AllGatherShards(shard_, output_, shards_)};
  }

 private:
  Group& group_;
  const Collective& whole_;
  Buffer input_, output_;
  Counts shards_;
  Buffer shard_;  // of this rank, in the output
  WireBuffer on_wire_;
};

// A plan whose chunks are runs of elements.
template <typename ChunkType>
class EvenPlan : public Plan {
 public:
  EvenPlan(Group& group, const Collective& whole, uint64_t count, DType dtype)
      : group_(group), whole_(whole), count_(count), chunk_(ChunkElements(group, dtype)) {}
  uint64_t chunk_count() const override { return CeilDivide(count_, chunk_); }
  std::unique_ptr<Chunk> MakeChunk(uint64_t index) override {
    const Range range{index * chunk_, std::min(chunk_, count_ - index * chunk_)};
    return std::make_unique<ChunkType>(group_, whole_, range);
  }

 private:
  Group& group_;
  const Collective& whole_;
  uint64_t count_, chunk_;
};

// --- reduce -------------------------------------------------------------------------------------

class ReduceChunk : public Chunk {
 public:
  ReduceChunk(Group& group, const Collective& whole, Range range)
      : group_(group),
        whole_(whole),
        input_(whole.input.Slice(range.begin, range.count)),
        shards_(Shards(group, range.count, input_.dtype)),
        staging_(group, OwnShard(group, shards_).count, input_.dtype) {
    if (group.rank == whole.root) output_ = whole.output.Slice(range.begin, range.count);
  }

  Parts Up() override { return {ReduceToShards(whole_, input_, shard(), shards_)}; }

  Parts Across() override {
    if (shard().count == 0) return {};
    Collective part =
        CombineHosts(whole_, group_.hosts.size(), CollectiveKind::kReduce, shard(), shard());
    part.root = group_.hosts.host(whole_.root);
    return {part};
  }

  Parts Down() override {
    if (!group_.on_this_host(whole_.root)) return {};
    output_.dtype = input_.dtype;
    return {GatherShards(shard(), output_, group_.hosts.local_rank(whole_.root), shards_)};
  }

 private:
  const Buffer& shard() const { return staging_.buffer(); }

  Group& group_;
  const Collective& whole_;
  Buffer input_, output_;
  Counts shards_;
  Staging staging_;
};

// --- reduce_scatter -----------------------------------------------------------------------------

// A part of the share of one rank. Empty if the ranks of its host have everything.
struct Piece {
  int rank = 0;
  Range range = {};  // of the whole input
};

class ReduceScatterChunk : public Chunk {
 public:
  // `pieces` has one piece for each host. `output` receives this host's piece, if this rank owns
  // it.
  ReduceScatterChunk(
      Group& group, const Collective& whole, std::vector<Piece> pieces, const Buffer& output)
      : group_(group), whole_(whole), pieces_(std::move(pieces)), output_(output) {
    const DType dtype = whole.input.dtype;
    uint64_t count = 0;
    for (const Piece& piece : pieces_) {
      shards_.push_back(Shards(group, piece.range.count, dtype));
      own_.push_back({count, OwnShard(group, shards_.back()).count});
      count += own_.back().count;
    }
    staging_ = Staging(group, count, dtype);
  }

  Parts Up() override {
    Parts parts;
    for (size_t h = 0; h < pieces_.size(); ++h) {
      const Range& range = pieces_[h].range;
      if (range.count == 0) continue;
      const Buffer input = whole_.input.Slice(range.begin, range.count);
      parts.push_back(ReduceToShards(whole_, input, OwnShardFor(h), shards_[h]));
    }
    return parts;
  }

  Parts Across() override {
    const Buffer& all = staging_.buffer();
    if (all.count == 0) return {};
    if (!Compressed(group_, all)) return {Across(all)};
    on_wire_ = WireBuffer(group_, all);
    return {Across(on_wire_.buffer())};
  }

  Parts Down() override {
    const auto h = static_cast<size_t>(group_.host);
    if (on_wire_.used()) on_wire_.Slice(own_[h]).WidenInto(OwnShardFor(h));
    if (pieces_[h].range.count == 0) return {};
    const int root = group_.hosts.local_rank(pieces_[h].rank);
    return {GatherShards(OwnShardFor(h), output_, root, shards_[h])};
  }

 private:
  Buffer OwnShardFor(size_t host) const {
    return staging_.buffer().Slice(own_[host].begin, own_[host].count);
  }
  Collective Across(const Buffer& all) const {
    const Range& own = own_[static_cast<size_t>(group_.host)];
    Collective part = CombineHosts(
        whole_, group_.hosts.size(), CollectiveKind::kReduceScatter, all,
        all.Slice(own.begin, own.count));
    for (const Range& range : own_) part.send_counts.push_back(range.count);
    return part;
  }

  Group& group_;
  const Collective& whole_;
  std::vector<Piece> pieces_;  // by host
  Buffer output_;
  std::vector<Counts> shards_;  // by host: the shards of its piece, by local rank
  std::vector<Range> own_;      // by host: this rank's shard of its piece, in the staging
  Staging staging_;
  WireBuffer on_wire_;
};

class ReduceScatterPlan : public Plan {
 public:
  ReduceScatterPlan(Group& group, const Collective& whole, const Calls& calls)
      : group_(group), whole_(whole), own_(calls.Share(group.rank)) {
    const auto host_count = static_cast<uint64_t>(group.hosts.host_count());
    const uint64_t most = ChunkElements(group, whole.input.dtype, host_count);
    for (int h = 0; h < group.hosts.host_count(); ++h) {
      auto& pieces = pieces_.emplace_back();
      for (const int r : group.hosts.ranks(h)) {
        const Range share = calls.Share(r);
        for (uint64_t begin = 0; begin < share.count; begin += most) {
          pieces.push_back({r, {share.begin + begin, std::min(most, share.count - begin)}});
        }
      }
      chunks_ = std::max(chunks_, pieces.size());
    }
  }

  uint64_t chunk_count() const override { return chunks_; }
  std::unique_ptr<Chunk> MakeChunk(uint64_t index) override {
    std::vector<Piece> pieces;
    for (const auto& of_host : pieces_) {
      pieces.push_back(index < of_host.size() ? of_host[index] : Piece{});
    }
    const Piece& here = pieces[static_cast<size_t>(group_.host)];
    Buffer output = whole_.output.Slice(0, 0);
    if (here.range.count > 0 && here.rank == group_.rank) {
      output = whole_.output.Slice(here.range.begin - own_.begin, here.range.count);
    }
    return std::make_unique<ReduceScatterChunk>(group_, whole_, std::move(pieces), output);
  }

 private:
  Group& group_;
  const Collective& whole_;
  Range own_;
  std::vector<std::vector<Piece>> pieces_;  // by host
  uint64_t chunks_ = 0;
};

// --- broadcast and all_gather -------------------------------------------------------------------

class BroadcastChunk : public Chunk {
 public:
  BroadcastChunk(Group& group, int root, const Buffer& chunk)
      : group_(group),
        root_(root),
        chunk_(chunk),
        shards_(Shards(group, chunk.count, chunk.dtype)) {
    const Range own = OwnShard(group, shards_);
    shard_ = chunk.Slice(own.begin, own.count);
  }

  Parts Up() override {
    if (!group_.on_this_host(root_) || group_.local_size() == 1) return {};
    return {BroadcastFrom(group_.hosts.local_rank(root_), chunk_)};
  }
  Parts Across() override {
    if (shard_.count == 0) return {};
    return {BroadcastFrom(group_.hosts.host(root_), shard_)};
  }
  Parts Down() override {
    if (group_.on_this_host(root_) || group_.local_size() == 1) return {};
    return {AllGatherShards(shard_, chunk_, shards_)};
  }

 private:
  Group& group_;
  int root_;
  Buffer chunk_;
  Counts shards_;
  Buffer shard_;
};

class BroadcastPlan : public Plan {
 public:
  BroadcastPlan(Group& group, const Collective& whole)
      : group_(group),
        root_(whole.root),
        buffer_(group.rank == whole.root ? whole.input : whole.output),
        chunk_(ChunkElements(group, buffer_.dtype)) {}
  uint64_t chunk_count() const override { return CeilDivide(buffer_.count, chunk_); }
  std::unique_ptr<Chunk> MakeChunk(uint64_t index) override {
    const uint64_t begin = index * chunk_;
    return std::make_unique<BroadcastChunk>(
        group_, root_, buffer_.Slice(begin, std::min(chunk_, buffer_.count - begin)));
  }

 private:
  Group& group_;
  int root_;
  Buffer buffer_;
  uint64_t chunk_;
};

class AllGatherPlan : public Plan {
 public:
  AllGatherPlan(Group& group, const Collective& whole, const Calls& calls)
      : group_(group), whole_(whole) {
    const auto size = static_cast<uint64_t>(group.hosts.size());
    const uint64_t most = ChunkElements(group, whole.output.dtype, std::min<uint64_t>(size, 8));
    bool more = true;
    for (uint64_t begin = 0; more; begin += most) {
      more = false;
      for (int r = 0; r < group.hosts.size(); ++r) {
        const Range block = calls.InOutput(r, group.rank);
        if (begin >= block.count) continue;
        pieces_.push_back({r, {block.begin + begin, std::min(most, block.count - begin)}});
        more = true;
      }
    }
    own_ = calls.InOutput(group.rank, group.rank);
  }

  uint64_t chunk_count() const override { return pieces_.size(); }
  std::unique_ptr<Chunk> MakeChunk(uint64_t index) override {
    const Piece& piece = pieces_[index];
    const Buffer chunk = whole_.output.Slice(piece.range.begin, piece.range.count);
    if (piece.rank == group_.rank) CopyInput(piece.range, chunk);
    return std::make_unique<BroadcastChunk>(group_, piece.rank, chunk);
  }

 private:
  void CopyInput(const Range& range, const Buffer& chunk) {
    const Buffer input = whole_.input.Slice(range.begin - own_.begin, range.count);
    if (input.data != chunk.data) std::memcpy(chunk.data, input.data, input.bytes());
  }

  Group& group_;
  const Collective& whole_;
  std::vector<Piece> pieces_;  // of the output
  Range own_;
};

// --- straight between all ranks -----------------------------------------------------------------

class FlatPlan : public Plan {
 public:
  explicit FlatPlan(const Collective& whole) : whole_(whole) {}
  uint64_t chunk_count() const override { return 1; }
  bool flat() const override { return true; }
  std::unique_ptr<Chunk> MakeChunk(uint64_t) override {
    class Whole : public Chunk {
     public:
      explicit Whole(const Collective& whole) : whole_(whole) {}
      Parts Across() override { return {whole_}; }

     private:
      const Collective& whole_;
    };
    return std::make_unique<Whole>(whole_);
  }

 private:
  const Collective& whole_;
};

bool IsSmallGather(const Group& group, const Collective& whole, const Calls& calls) {
  uint64_t most = 0;
  for (int r = 0; r < group.hosts.size(); ++r) most = std::max(most, calls.InputCount(r));
  return most * SizeOf(whole.output.dtype) <= group.route.chunk_bytes / kSmallGatherPart;
}

}  // namespace

std::unique_ptr<Plan> MakePlan(Group& group, const Collective& whole, const Calls& calls) {
  if (group.route.flat && Combines(whole.kind)) return std::make_unique<FlatPlan>(whole);
  switch (whole.kind) {
    case CollectiveKind::kAllReduce:
      return std::make_unique<EvenPlan<AllReduceChunk>>(
          group, whole, whole.input.count, whole.input.dtype);
    case CollectiveKind::kReduce:
      return std::make_unique<EvenPlan<ReduceChunk>>(
          group, whole, whole.input.count, whole.input.dtype);
    case CollectiveKind::kReduceScatter:
      return std::make_unique<ReduceScatterPlan>(group, whole, calls);
    case CollectiveKind::kBroadcast: return std::make_unique<BroadcastPlan>(group, whole);
    case CollectiveKind::kAllGather:
      if (IsSmallGather(group, whole, calls)) break;
      return std::make_unique<AllGatherPlan>(group, whole, calls);
    default: break;
  }
  return std::make_unique<FlatPlan>(whole);
}

}  // namespace dtrun::ops::hierarchical
