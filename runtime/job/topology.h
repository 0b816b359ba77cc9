#ifndef DTRUN_RUNTIME_JOB_TOPOLOGY_H_
#define DTRUN_RUNTIME_JOB_TOPOLOGY_H_

#include <optional>
#include <string>
#include <vector>

#include "base/launch_env.h"
#include "dtrun/types.h"

namespace dtrun::runtime {

/// The host of each rank.
struct Placement {
  std::vector<base::HostSlots> hosts;  ///< with the number of ranks on each
  std::vector<int> host_of_rank;       ///< index into `hosts`
};

/// Places ranks by the launcher's host list: ranks are numbered through the hosts in order.
Placement PlaceByHostList(const std::vector<base::HostSlots>& hosts);

/// Places ranks by MPI's view, in any order of ranks. `leaders` has, for each rank, the lowest rank
/// on its host. `names` has the name of that host.
///
///   leaders {0, 1, 0}, names {"a", "b", "a"}  ->  hosts {a: 2, b: 1}, host_of_rank {0, 1, 0}
Placement PlaceByLeaders(const std::vector<int>& leaders, const std::vector<std::string>& names);

/// The topology of `rank`. local_rank is the number of lower ranks on its host. cross_rank is the
/// number of lower hosts that have a rank with the same local_rank.
Topology TopologyOf(const Placement& placement, int rank);

/// The CPUs that this process may run on: a string of '0' and '1' by CPU number.
std::string AllowedCpus();

/// The number of CPUs that the control groups of this process let it use at a time, rounded up.
/// nullopt if there is no limit. Reads control groups of versions 1 and 2: the process's group and
/// all groups above it. `root` is prepended to the paths of /proc and /sys.
std::optional<int> CpuQuota(const std::string& root = "");

/// The number of CPUs that at least one mask contains.
int CountUnion(const std::vector<std::string>& masks);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_JOB_TOPOLOGY_H_
