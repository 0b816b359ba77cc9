#ifndef DTRUN_BENCH_CORE_DISTANCE_H_
#define DTRUN_BENCH_CORE_DISTANCE_H_

#include <dtrun/dtrun.h>

namespace dtrun::bench {

/// How long a cache line takes from the core of rank 0 to that of rank 1, in nanoseconds: some 40
/// where they share a last-level cache, some 200 where they do not and have a path to memory each,
/// so that both together read and write twice as much. Virtual machines do not tell, and move
/// between the two. 0 where these ranks share no host, or a core. Collective.
double CacheLineNs(Context& job);

}  // namespace dtrun::bench

#endif
