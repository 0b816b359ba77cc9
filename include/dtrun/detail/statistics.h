#ifndef DTRUN_DETAIL_STATISTICS_H_
#define DTRUN_DETAIL_STATISTICS_H_

#include <dtrun/c.h>

#include <cstdint>
#include <vector>

namespace dtrun {

/// The time that one or more steps took on this rank. A step lasts from the end of a wait for its
/// gradients to the end of the next wait. The first step begins with the reducer.
struct StepStatistics {
  uint64_t steps = 0;    ///< number of ended steps
  double total_s = 0;    ///< seconds
  double compute_s = 0;  ///< part of total_s: outside the reducer, in the trainer
  double exposed_s = 0;  ///< the rest: in the reducer, not hidden behind computation
  double late_s = 0;     ///< part of exposed_s: waiting for ranks that arrived late
  double moving_s = 0;   ///< the rest of exposed_s: transfers, copies, starts
  uint64_t bytes = 0;    ///< reduced bytes, with padding
  uint64_t buckets = 0;  ///< collectives that reduced them
};

/// The time that the steps of a reducer or an optimizer took on this rank.
struct ReducerStatistics {
  StepStatistics last;   ///< the last step
  StepStatistics total;  ///< all steps
  /// By rank of the communicator: the seconds of total.late_s in which that rank was missing.
  /// Several ranks may be missing at a time.
  std::vector<double> late_by_rank_s;
};

namespace detail {

inline StepStatistics FromC(const dtrun_step_statistics& statistics) {
  return {statistics.steps,     statistics.total_s, statistics.total_s - statistics.exposed_s,
          statistics.exposed_s, statistics.late_s,  statistics.exposed_s - statistics.late_s,
          statistics.bytes,     statistics.buckets};
}

}  // namespace detail
}  // namespace dtrun

#endif
