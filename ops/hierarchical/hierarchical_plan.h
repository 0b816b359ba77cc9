#ifndef DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_PLAN_H_
#define DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_PLAN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/collective/collective.h"
#include "ops/hierarchical/hierarchical_group.h"

namespace dtrun::ops::hierarchical {

/// Collectives on one lane that start together.
using Parts = std::vector<Collective>;

/// A piece of a collective's data. It goes up within the host, across between the hosts, and down
/// within the host. The parts of each step are requested when the step before has ended.
class Chunk {
 public:
  virtual ~Chunk() = default;
  virtual Parts Up() { return {}; }
  virtual Parts Across() { return {}; }
  virtual Parts Down() { return {}; }
};

/// How the data of one collective is cut into chunks. The chunks of all ranks correspond.
class Plan {
 public:
  virtual ~Plan() = default;
  virtual uint64_t chunk_count() const = 0;
  virtual std::unique_ptr<Chunk> MakeChunk(uint64_t index) = 0;
  /// True if the chunks only go across, on the communicator of all ranks.
  virtual bool flat() const { return false; }
};

/// Plans a collective on whose calls all ranks agree. `calls` is used only during this call.
std::unique_ptr<Plan> MakePlan(Group& group, const Collective& collective, const Calls& calls);

}  // namespace dtrun::ops::hierarchical

#endif
