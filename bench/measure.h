#ifndef DTRUN_BENCH_MEASURE_H_
#define DTRUN_BENCH_MEASURE_H_

#include <dtrun/dtrun.h>

#include <functional>
#include <string>
#include <vector>

#include "bench/collective_case.h"
#include "bench/cpu_watch.h"

namespace dtrun::bench {

double Median(std::vector<double> values);

/// Whether a side is called once before its part of a round is timed: when others have had the CPU
/// in between, such as a peer in a process of its own, its caches are cold. Calls of a second and
/// more are timed as they are.
enum class Warmth { kAsItIs, kWarm };

/// Calls of several sides in turn, a batch of each per round; a batch is long enough for the clock.
/// The time of a round is the slowest rank's, the result the median of each side in microseconds,
/// over `least_rounds` or more. Collective.
std::vector<double> MeasureInTurn(
    Communicator& comm, const std::vector<std::function<void()>>& sides, int least_rounds,
    Warmth warmth = Warmth::kAsItIs);

struct Times {
  double ours_us = 0;
  double peers_us = 0;  ///< 0 without a peer
};

/// MeasureInTurn of both sides. Collective.
Times Measure(Communicator& comm, CollectiveCase& measured, int least_rounds);

/// What memory allows, in GB/s.
struct MemorySpeed {
  double copy_gbps = 0;  ///< bytes that rank 0 copies while the others are idle
  /// Bytes that all ranks read and write at the same time, each adding two arrays into both and
  /// waiting for nobody: what an all-reduce of two mapped buffers does at the least.
  double in_place_gbps = 0;
};

/// Collective.
MemorySpeed MeasureMemorySpeed(Communicator& comm);

/// The share of the hosts' CPU time that went to processes that are not of this job. Collective.
double ForeignShare(Context& job, const CpuWatch& watch);

/// What the MPI beside ours runs with.
struct PeerSettings {
  std::string version;                 ///< "Open MPI v4.1.4"
  bool yields_when_idle = false;       ///< as this process has it, however it was set
  std::vector<std::string> variables;  ///< "OMPI_MCA_coll_tuned_use_dynamic_rules=1"
};

PeerSettings ReadPeerSettings();

/// More ranks of this job share the host than it has CPUs.
bool Oversubscribed(const Context& job);

}  // namespace dtrun::bench

#endif
