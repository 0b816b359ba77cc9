#ifndef DTRUN_OPS_CUDA_HOST_CHUNKS_H_
#define DTRUN_OPS_CUDA_HOST_CHUNKS_H_

#include <cstdint>
#include <vector>

#include "ops/collective.h"

namespace dtrun::ops::cuda {

/// A piece of a buffer on a GPU, and where it lies in a chunk's host memory.
struct ChunkPart {
  Buffer on_gpu;
  char* on_host = nullptr;
};

/// A part of a collective that can be done by itself: what goes to the host, what the host's ranks
/// call, in place in that memory, and what goes back.
struct HostChunk {
  std::vector<ChunkPart> in, out;
  Collective on_host;
};

/// In how many chunks of about `chunk_bytes` it goes, the same on all ranks that call the same. One
/// where a chunk of the result does not depend on a chunk of the input alone.
uint64_t ChunkCount(const Collective& collective, int rank, int size, uint64_t chunk_bytes);

/// Chunk `index` of `chunks`, in host memory of ChunkBytes. Elements are dealt evenly, each rank's
/// part of them by itself.
HostChunk MakeChunk(
    const Collective& collective, int rank, int size, uint64_t index, uint64_t chunks,
    char* memory);
uint64_t ChunkBytes(uint64_t chunk_bytes, int size);

}  // namespace dtrun::ops::cuda

#endif
