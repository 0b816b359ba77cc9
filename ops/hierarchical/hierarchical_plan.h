#ifndef DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_PLAN_H_
#define DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_PLAN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/collective/collective.h"
#include "ops/hierarchical/hierarchical_group.h"

namespace dtrun::ops::hierarchical {

/// Collectives of one lane that are started together.
using Parts = std::vector<Collective>;

/// A piece of a collective's data on its way: up within the host, across between the hosts, down
/// within the host. Each is asked for when what came before has ended.
class Chunk {
 public:
  virtual ~Chunk() = default;
  virtual Parts Up() { return {}; }
  virtual Parts Across() { return {}; }
  virtual Parts Down() { return {}; }
};

/// How the data of one collective is cut. The chunks of all ranks correspond.
class Plan {
 public:
  virtual ~Plan() = default;
  virtual uint64_t chunk_count() const = 0;
  virtual std::unique_ptr<Chunk> MakeChunk(uint64_t index) = 0;
  /// The chunks go across on the communicator of all ranks, and neither up nor down.
  virtual bool flat() const { return false; }
};

/// For a collective on whose calls all ranks agree. `calls` is not kept.
std::unique_ptr<Plan> MakePlan(Group& group, const Collective& collective, const Calls& calls);

}  // namespace dtrun::ops::hierarchical

#endif
