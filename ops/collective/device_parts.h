#ifndef DTRUN_OPS_COLLECTIVE_DEVICE_PARTS_H_
#define DTRUN_OPS_COLLECTIVE_DEVICE_PARTS_H_

#include <cstdint>
#include <vector>

#include "ops/collective/collective.h"
#include "ops/collective/host_map.h"

namespace dtrun::ops::cuda {

/// A piece of a collective's data on its way: up within the host, across between the hosts, by the
/// ranks that have a rail, down within the host.
struct Step {
  std::vector<Collective> up, across, down;
};

/// Who carries out the steps, and with what.
struct TwoLevels {
  const HostMap& hosts;
  int rank = 0;
  uint64_t chunk_bytes = 0;  ///< of data that travels together
  char* staging = nullptr;   ///< two slots of SlotBytes, used in turns
};

/// What a slot of staging memory has to hold.
uint64_t SlotBytes(const HostMap& hosts, uint64_t chunk_bytes);

/// Whether there are steps for it; other kinds go straight between all ranks.
bool HasSteps(CollectiveKind kind);

/// The steps of rank `levels.rank`, one at least, which correspond on all ranks; pure. All ranks of
/// each host meet in the first `up` and in the last `down`. Buffers lie in no stream yet. A step's
/// `up` may be enqueued before the `across` of the step before it, and no earlier.
std::vector<Step> PlanSteps(const TwoLevels& levels, const Collective& collective);

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

#endif  // DTRUN_OPS_COLLECTIVE_DEVICE_PARTS_H_
