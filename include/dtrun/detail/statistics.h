#ifndef DTRUN_DETAIL_STATISTICS_H_
#define DTRUN_DETAIL_STATISTICS_H_

#include <dtrun/c.h>

#include <cstdint>
#include <vector>

namespace dtrun {

/// Where the time of one or more steps went on this rank. A step lasts from the end of a wait for
/// its gradients to the end of the next; the first one begins with the reducer.
struct StepStatistics {
  uint64_t steps = 0;
  double total_s = 0;    ///< seconds
  double compute_s = 0;  ///< of it, outside of the reducer: what the trainer does itself
  double exposed_s = 0;  ///< the rest: in the reducer, not hidden behind computation
  double late_s = 0;     ///< of exposed_s, waiting for ranks that were not there yet
  double moving_s = 0;   ///< of exposed_s, all else: data that moves, copies, starting
  uint64_t bytes = 0;    ///< that were reduced, padding included
  uint64_t buckets = 0;  ///< collectives that did it
};

struct ReducerStatistics {
  StepStatistics last;   ///< the last step
  StepStatistics total;  ///< all steps
  /// By rank of the communicator: seconds of total.late_s in which that rank was seen missing.
  /// Several may be missing at a time.
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
