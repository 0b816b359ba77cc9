#include "ops/cuda/host_chunks.h"

#include <algorithm>
#include <numeric>

namespace dtrun::ops::cuda {
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

// Part `index` of `count` elements that are dealt evenly to `chunks`.
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
      // As an element of the whole, and of its own part.
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
  // Each rank's part may have an element more than its fraction.
  return chunk_bytes + static_cast<uint64_t>(size) * sizeof(uint64_t);
}

}  // namespace dtrun::ops::cuda
