#ifndef DTRUN_OPS_HIERARCHICAL_ARITHMETIC_H_
#define DTRUN_OPS_HIERARCHICAL_ARITHMETIC_H_

#include "ops/collective.h"
#include "ops/reduce/reduce.h"

namespace dtrun::ops::hierarchical {

/// A reduction over all ranks is one over the ranks of each host, then one over the hosts: inputs
/// are scaled by the first, divided and scaled by the second alone.
inline Arithmetic WithinHost(const Collective& collective) {
  const bool average = collective.op == ReduceOp::kAverage;
  return {
      .op = average ? ReduceOp::kSum : collective.op,
      .scale = {.before = collective.scale.before, .after = 1},
  };
}

inline Arithmetic BetweenHosts(const Collective& collective, int size) {
  return {
      .op = collective.op,
      .divisor = collective.divisor > 0 ? collective.divisor : size,
      .scale = {.before = 1, .after = collective.scale.after},
  };
}

}  // namespace dtrun::ops::hierarchical

#endif
