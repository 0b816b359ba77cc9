#ifndef DTRUN_OPS_COLLECTIVE_DEVICE_PARTS_H_
#define DTRUN_OPS_COLLECTIVE_DEVICE_PARTS_H_

#include <cstdint>
#include <vector>

#include "ops/collective/collective.h"
#include "ops/collective/host_map.h"

namespace dtrun::ops::cuda {

/// The collectives of one step of a plan: up within the host, across between the hosts on the ranks
/// that have a rail, and down within the host.
struct Step {
  std::vector<Collective> up, across, down;
};

/// The rank that carries out the steps, and the resources that it uses.
struct TwoLevels {
  const HostMap& hosts;
  int rank = 0;
  uint64_t chunk_bytes = 0;  ///< bytes of data that travel together
  char* staging = nullptr;   ///< two slots of SlotBytes, used alternately
};

/// The bytes of one slot of staging memory.
uint64_t SlotBytes(const HostMap& hosts, uint64_t chunk_bytes);

/// True if PlanSteps plans this kind. Other kinds go straight between all ranks.
bool HasSteps(CollectiveKind kind);

/// The steps of rank `levels.rank`, at least one. The steps of all ranks correspond. All ranks of a
/// host take part in the first `up` and in the last `down`. The buffers lie in no stream yet. The
/// `up` of step k may be enqueued before the `across` of step k - 1, but only after all of step k -
/// 2. Pure.
std::vector<Step> PlanSteps(const TwoLevels& levels, const Collective& collective);

/// A piece of a GPU buffer, and its place in the host memory of a chunk.
struct ChunkPart {
  Buffer on_gpu;
  char* on_host = nullptr;
};

/// A part of a collective that can be done separately: the pieces that go to the host, the call of
/// the host's ranks, in place in that memory, and the pieces that go back.
struct HostChunk {
  std::vector<ChunkPart> in, out;
  Collective on_host;
};

/// The number of chunks of about `chunk_bytes`, the same on all ranks that make the same call.
/// Returns 1 if a chunk of the result needs more than the same chunk of the input.
uint64_t ChunkCount(const Collective& collective, int rank, int size, uint64_t chunk_bytes);

/// Makes chunk `index` of `chunks` in `memory`, which has ChunkBytes. Each rank's part is dealt
/// evenly to the chunks, separately from the other parts.
HostChunk MakeChunk(
    const Collective& collective, int rank, int size, uint64_t index, uint64_t chunks,
    char* memory);
uint64_t ChunkBytes(uint64_t chunk_bytes, int size);

}  // namespace dtrun::ops::cuda

#endif  // DTRUN_OPS_COLLECTIVE_DEVICE_PARTS_H_
