// A rail connects one rank of each host: local ranks 0 to rails - 1 of each host have a rail. Data
// that crosses is dealt to the rails, so all rails together carry it over the wire once. The
// arithmetic is the same as in ops/hierarchical/hierarchical_plan.cc:
//
//   all_reduce      up: reduce-scatter to the owners of the shards; across: all-reduce of each
//                   shard; down: all-gather of the shards. All in the output.
//   reduce          the same in staging memory, but across to the root's host and down to the root.
//   broadcast       up: broadcast within the root's host; across: each shard to all hosts; down:
//                   all-gather within the other hosts.
//   all_gather      a step is a run of consecutive ranks that share a host, with its run of the
//                   output. up: gathered within that host; then a broadcast from that host.
//   reduce_scatter  at once, for little data, if all hosts have equally many ranks and the ranks of
//                   a host are consecutive. up: the shares of each host are reduce-scattered to the
//                   ranks on the rails of their owners; across: reduce-scatter to the owners.
//                   in pieces, otherwise: a step has a piece for one rank of each host. up:
//                   reduce-scatter of every piece to the rails; across: reduce-scatter between
//                   hosts; down: the rank that owns the piece gathers it.
//   barrier         up, across, down.

#include "ops/collective/device_parts.h"

#include <algorithm>
#include <numeric>

#include "ops/collective/host_map.h"

namespace dtrun::ops::cuda {
namespace {

using hierarchical::AllGatherShards;
using hierarchical::BroadcastFrom;
using hierarchical::CombineHosts;
using hierarchical::GatherShards;
using hierarchical::ReduceToShards;

constexpr uint64_t kLine = 64;  // bytes; shards are whole lines

uint64_t CeilDivide(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

uint64_t Before(const Counts& counts, int index) {
  return std::accumulate(counts.begin(), counts.begin() + index, uint64_t{0});
}

class StepPlanner {
 public:
  StepPlanner(const TwoLevels& levels, const Collective& collective)
      : hosts_(levels.hosts),
        c_(collective),
        rank_(levels.rank),
        host_(hosts_.host(rank_)),
        local_rank_(hosts_.local_rank(rank_)),
        local_size_(hosts_.local_size(host_)),
        chunk_bytes_(levels.chunk_bytes),
        staging_(levels.staging),
        slot_bytes_(SlotBytes(hosts_, levels.chunk_bytes)),
        typed_(UsesInput(c_, rank_) ? c_.input : c_.output) {}

  std::vector<Step> Make() {
    switch (c_.kind) {
      case CollectiveKind::kAllReduce: AllReduce(); break;
      case CollectiveKind::kReduce: Reduce(); break;
      case CollectiveKind::kBroadcast: Broadcast(); break;
      case CollectiveKind::kAllGather: AllGather(); break;
      case CollectiveKind::kReduceScatter: ReduceScatter(); break;
      default: steps_.push_back({.up = {}, .across = {Barrier()}, .down = {}}); break;
    }
    for (Step& step : steps_) {
      if (local_rank_ >= hosts_.rails()) step.across.clear();
    }
    if (steps_.front().up.empty()) steps_.front().up.push_back(Barrier());
    if (steps_.back().down.empty()) steps_.back().down.push_back(Barrier());
    return std::move(steps_);
  }

 private:
  static Collective Barrier() { return {.kind = CollectiveKind::kBarrier}; }

  // ---- parts of a buffer

  Counts Shards(uint64_t count) const {
    return DealToRails(count, typed_.dtype, hosts_.rails(), local_size_);
  }
  Buffer Own(const Buffer& whole, const Counts& shards) const {
    return whole.Slice(Before(shards, local_rank_), shards[static_cast<size_t>(local_rank_)]);
  }
  // A buffer in the slot of the next step.
  Buffer Staging(uint64_t count) const {
    Buffer buffer = typed_;
    buffer.data = staging_ + steps_.size() % 2 * slot_bytes_;
    buffer.count = count;
    return buffer;
  }
  // The elements of one part of a chunk, if `parts` parts travel together.
  uint64_t ChunkElements(uint64_t parts = 1) const {
    return std::max(chunk_bytes_ / parts / kLine, uint64_t{1}) * kLine / SizeOf(typed_.dtype);
  }
  // Calls `add` for each run of elements, and at least once.
  template <typename Add>
  void ForChunks(uint64_t count, Add add) {
    const uint64_t chunk = ChunkElements();
    for (uint64_t begin = 0; begin == 0 || begin < count; begin += chunk)
      add(begin, std::min(chunk, count - begin));
  }

  // ---- data movement

  // Sends the buffer from the ranks of host `host`, which all have it, to all other ranks.
  void Spread(int host, const Buffer& buffer, Step& step) const {
    const Counts shards = Shards(buffer.count);
    const Buffer own = Own(buffer, shards);
    if (own.count > 0) step.across.push_back(BroadcastFrom(host, own));
    if (host != host_) step.down.push_back(AllGatherShards(own, buffer, shards));
  }

  // ---- kinds

  void AllReduce() {
    ForChunks(c_.input.count, [&](uint64_t begin, uint64_t count) {
      const Buffer output = c_.output.Slice(begin, count);
      const Counts shards = Shards(count);
      const Buffer own = Own(output, shards);
      Step step;
      step.up.push_back(ReduceToShards(c_, c_.input.Slice(begin, count), own, shards));
      if (own.count > 0)
        step.across.push_back(
            CombineHosts(c_, hosts_.size(), CollectiveKind::kAllReduce, own, own));
      step.down.push_back(AllGatherShards(own, output, shards));
      steps_.push_back(std::move(step));
    });
  }

  void Reduce() {
    ForChunks(c_.input.count, [&](uint64_t begin, uint64_t count) {
      const Counts shards = Shards(count);
      const Buffer own = Staging(shards[static_cast<size_t>(local_rank_)]);
      const int root_host = hosts_.host(c_.root);
      Step step;
      step.up.push_back(ReduceToShards(c_, c_.input.Slice(begin, count), own, shards));
      if (own.count > 0)
        step.across.push_back(
            CombineHosts(c_, hosts_.size(), CollectiveKind::kReduce, own, own, root_host));
      if (root_host == host_) {
        Buffer output = rank_ == c_.root ? c_.output.Slice(begin, count) : Buffer();
        output.dtype = typed_.dtype;
        step.down.push_back(GatherShards(own, output, hosts_.local_rank(c_.root), shards));
      }
      steps_.push_back(std::move(step));
    });
  }

  void Broadcast() {
    ForChunks(typed_.count, [&](uint64_t begin, uint64_t count) {
      const Buffer chunk = typed_.Slice(begin, count);
      const int root_host = hosts_.host(c_.root);
      Step step;
      if (root_host == host_) step.up.push_back(BroadcastFrom(hosts_.local_rank(c_.root), chunk));
      Spread(root_host, chunk, step);
      steps_.push_back(std::move(step));
    });
  }

  void AllGather() {
    const Counts counts = c_.receive_counts.empty()
                              ? Counts(static_cast<size_t>(hosts_.size()), c_.input.count)
                              : c_.receive_counts;
    for (int begin = 0, end = 0; begin < hosts_.size(); begin = end) {
      const int host = hosts_.host(begin);
      while (end < hosts_.size() && hosts_.host(end) == host) ++end;
      const uint64_t first = Before(counts, begin);
      const Buffer run = c_.output.Slice(first, Before(counts, end) - first);
      Step step;
      if (host == host_) {
        Counts own(static_cast<size_t>(local_size_));
        for (int r = begin; r < end; ++r)
          own[static_cast<size_t>(hosts_.local_rank(r))] = counts[static_cast<size_t>(r)];
        const bool here = rank_ >= begin && rank_ < end;
        step.up.push_back(AllGatherShards(here ? c_.input : c_.input.Slice(0, 0), run, own));
      }
      Spread(host, run, step);
      steps_.push_back(std::move(step));
    }
  }

  void ReduceScatter() {
    shares_ = c_.send_counts.empty() ? DealRows(c_.input.count, 1, hosts_.size()) : c_.send_counts;
    if (GoesAtOnce()) {
      ReduceScatterAtOnce();
    } else {
      ReduceScatterInPieces();
    }
  }

  uint64_t ShareOf(int host, int local_rank) const {
    return shares_[static_cast<size_t>(hosts_.ranks(host)[static_cast<size_t>(local_rank)])];
  }

  bool GoesAtOnce() const {
    uint64_t most = 0;
    for (int l = 0; l < hosts_.rails(); ++l) {
      uint64_t staged = 0;
      for (int h = 0; h < hosts_.host_count(); ++h) staged += ShareOf(h, l);
      most = std::max(most, staged);
    }
    for (int h = 0; h < hosts_.host_count(); ++h) {
      const std::vector<int>& ranks = hosts_.ranks(h);
      if (hosts_.local_size(h) != hosts_.rails()) return false;
      if (ranks.back() - ranks.front() + 1 != hosts_.rails()) return false;
    }
    return most * SizeOf(typed_.dtype) <= slot_bytes_;
  }

  void ReduceScatterAtOnce() {
    Step step;
    Counts own;
    for (int h = 0; h < hosts_.host_count(); ++h) own.push_back(ShareOf(h, local_rank_));
    const Buffer all = Staging(Before(own, hosts_.host_count()));
    for (int h = 0; h < hosts_.host_count(); ++h) {
      Counts shares;
      for (int l = 0; l < local_size_; ++l) shares.push_back(ShareOf(h, l));
      const uint64_t begin = Before(shares_, hosts_.ranks(h).front());
      step.up.push_back(ReduceToShards(
          c_, c_.input.Slice(begin, Before(shares, local_size_)),
          all.Slice(Before(own, h), own[static_cast<size_t>(h)]), shares));
    }
    if (all.count > 0) {
      step.across.push_back(
          CombineHosts(c_, hosts_.size(), CollectiveKind::kReduceScatter, all, c_.output));
      step.across.back().send_counts = own;
    }
    steps_.push_back(std::move(step));
  }

  // A part of the share of one rank. Empty if the ranks of its host have everything.
  struct Piece {
    int rank = 0;
    uint64_t begin = 0, count = 0;  // of the whole input
  };

  void ReduceScatterInPieces() {
    const uint64_t most = ChunkElements(static_cast<uint64_t>(hosts_.host_count()));
    std::vector<std::vector<Piece>> pieces;  // by host
    size_t steps = 1;
    for (int h = 0; h < hosts_.host_count(); ++h) {
      auto& of_host = pieces.emplace_back();
      for (const int r : hosts_.ranks(h)) {
        const uint64_t share = shares_[static_cast<size_t>(r)], first = Before(shares_, r);
        for (uint64_t begin = 0; begin < share; begin += most)
          of_host.push_back({r, first + begin, std::min(most, share - begin)});
      }
      steps = std::max(steps, of_host.size());
    }
    for (size_t i = 0; i < steps; ++i) {
      std::vector<Piece> of_step;
      for (const auto& of_host : pieces)
        of_step.push_back(i < of_host.size() ? of_host[i] : Piece{});
      steps_.push_back(ReducePieces(of_step));
    }
  }

  // `pieces` has one piece for each host.
  Step ReducePieces(const std::vector<Piece>& pieces) const {
    Step step;
    std::vector<Counts> shards;
    Counts own;
    for (const Piece& piece : pieces) {
      shards.push_back(Shards(piece.count));
      own.push_back(shards.back()[static_cast<size_t>(local_rank_)]);
    }
    const Buffer all = Staging(Before(own, hosts_.host_count()));
    const auto part = [&](int h) { return all.Slice(Before(own, h), own[static_cast<size_t>(h)]); };
    for (int h = 0; h < hosts_.host_count(); ++h) {
      const auto index = static_cast<size_t>(h);
      if (pieces[index].count == 0) continue;
      const Buffer input = c_.input.Slice(pieces[index].begin, pieces[index].count);
      step.up.push_back(ReduceToShards(c_, input, part(h), shards[index]));
    }
    if (all.count > 0) {
      step.across.push_back(
          CombineHosts(c_, hosts_.size(), CollectiveKind::kReduceScatter, all, part(host_)));
      step.across.back().send_counts = own;
    }
    const Piece& here = pieces[static_cast<size_t>(host_)];
    if (here.count > 0) {
      Buffer output = c_.output.Slice(0, 0);
      if (here.rank == rank_)
        output = c_.output.Slice(here.begin - Before(shares_, rank_), here.count);
      step.down.push_back(GatherShards(
          part(host_), output, hosts_.local_rank(here.rank), shards[static_cast<size_t>(host_)]));
    }
    return step;
  }

  const HostMap& hosts_;
  const Collective& c_;
  int rank_, host_, local_rank_, local_size_;
  uint64_t chunk_bytes_;
  char* staging_;
  uint64_t slot_bytes_;
  Buffer typed_;
  Counts shares_;  // of a reduce_scatter
  std::vector<Step> steps_;
};

}  // namespace

uint64_t SlotBytes(const HostMap& hosts, uint64_t chunk_bytes) {
  // A host's part may be one line longer than an equal part. So may a rail's part of it.
  const auto parts = static_cast<uint64_t>(hosts.host_count());
  const uint64_t lines = CeilDivide(chunk_bytes, kLine) + parts;
  return (CeilDivide(lines, static_cast<uint64_t>(hosts.rails())) + parts) * kLine;
}

bool HasSteps(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kReduce:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kBarrier: return true;
    default: return false;
  }
}

std::vector<Step> PlanSteps(const TwoLevels& levels, const Collective& collective) {
  return StepPlanner(levels, collective).Make();
}

namespace {

Counts PartsOf(const Collective& c, int rank, int size) {
  switch (c.kind) {
    case CollectiveKind::kReduceScatter:
      return c.send_counts.empty() ? DealRows(c.input.count, 1, size) : c.send_counts;
    case CollectiveKind::kAllGather:
      return c.receive_counts.empty() ? Counts(static_cast<size_t>(size), c.input.count)
                                      : c.receive_counts;
    default: return {UsesInput(c, rank) ? c.input.count : c.output.count};
  }
}

bool GoesInChunks(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduce ||
         kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kAllGather;
}

DType DTypeOf(const Collective& c, int rank) {
  return UsesInput(c, rank) ? c.input.dtype : c.output.dtype;
}

// Part `index` of `count` elements that are dealt evenly to `chunks` chunks.
Range Dealt(uint64_t count, uint64_t index, uint64_t chunks) {
  const uint64_t each = count / chunks, more = count % chunks;
  return {each * index + std::min(index, more), each + (index < more ? 1 : 0)};
}

class ChunkMaker {
 public:
  ChunkMaker(const Collective& c, int rank, int size, uint64_t index, uint64_t chunks, char* memory)
      : c_(c), rank_(rank), dtype_(DTypeOf(c, rank)), memory_(memory) {
    uint64_t begin = 0;
    for (const uint64_t part : PartsOf(c, rank, size)) {
      const Range range = Dealt(part, index, chunks);
      // The same elements, as a range of the whole and as a range of their part.
      in_whole_.push_back({begin + range.begin, range.count});
      in_part_.push_back(range);
      counts_.push_back(range.count);
      begin += part;
    }
    chunk_.on_host = c;
    chunk_.on_host.input = chunk_.on_host.output = OnHost(0, in_whole_.size());
  }

  HostChunk Make() {
    const auto own = static_cast<size_t>(rank_);
    Collective& on_host = chunk_.on_host;
    if (c_.kind == CollectiveKind::kReduceScatter) {
      Whole(c_.input, chunk_.in);
      Add(c_.output, in_part_[own], own, chunk_.out);
      on_host.output = OnHost(own, 1);
      on_host.send_counts = counts_;
    } else if (c_.kind == CollectiveKind::kAllGather) {
      Add(c_.input, in_part_[own], own, chunk_.in);
      Whole(c_.output, chunk_.out);
      on_host.input = OnHost(own, 1);
      on_host.receive_counts = counts_;
    } else {
      if (UsesInput(c_, rank_)) Whole(c_.input, chunk_.in);
      if (UsesOutput(c_, rank_)) Whole(c_.output, chunk_.out);
    }
    return std::move(chunk_);
  }

 private:
  uint64_t Before(size_t part) const {
    return std::accumulate(
        counts_.begin(), counts_.begin() + static_cast<int64_t>(part), uint64_t{0});
  }
  Buffer OnHost(size_t part, size_t parts) const {
    return Buffer(
        memory_ + Before(part) * SizeOf(dtype_), Before(part + parts) - Before(part), dtype_);
  }
  void Add(const Buffer& on_gpu, Range range, size_t part, std::vector<ChunkPart>& parts) const {
    if (range.count == 0) return;
    parts.push_back(
        {on_gpu.Slice(range.begin, range.count), memory_ + Before(part) * SizeOf(dtype_)});
  }
  void Whole(const Buffer& on_gpu, std::vector<ChunkPart>& parts) const {
    for (size_t r = 0; r < in_whole_.size(); ++r) Add(on_gpu, in_whole_[r], r, parts);
  }

  const Collective& c_;
  int rank_;
  DType dtype_;
  char* memory_;
  std::vector<Range> in_whole_, in_part_;
  Counts counts_;
  HostChunk chunk_;
};

}  // namespace

uint64_t ChunkCount(const Collective& c, int rank, int size, uint64_t chunk_bytes) {
  if (!GoesInChunks(c.kind)) return 1;
  const Counts parts = PartsOf(c, rank, size);
  const uint64_t bytes =
      std::accumulate(parts.begin(), parts.end(), uint64_t{0}) * SizeOf(DTypeOf(c, rank));
  return std::max<uint64_t>((bytes + chunk_bytes - 1) / chunk_bytes, 1);
}

HostChunk MakeChunk(
    const Collective& c, int rank, int size, uint64_t index, uint64_t chunks, char* memory) {
  return ChunkMaker(c, rank, size, index, chunks, memory).Make();
}

uint64_t ChunkBytes(uint64_t chunk_bytes, int size) {
  // Each rank's part may have one element more than an equal part.
  return chunk_bytes + static_cast<uint64_t>(size) * sizeof(uint64_t);
}

}  // namespace dtrun::ops::cuda
