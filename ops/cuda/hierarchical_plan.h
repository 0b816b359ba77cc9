#ifndef DTRUN_OPS_CUDA_HIERARCHICAL_PLAN_H_
#define DTRUN_OPS_CUDA_HIERARCHICAL_PLAN_H_

#include <cstdint>
#include <vector>

#include "ops/collective.h"
#include "ops/hierarchical/host_map.h"

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

}  // namespace dtrun::ops::cuda

#endif
