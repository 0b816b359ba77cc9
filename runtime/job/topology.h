#ifndef DTRUN_RUNTIME_JOB_TOPOLOGY_H_
#define DTRUN_RUNTIME_JOB_TOPOLOGY_H_

#include <optional>
#include <string>
#include <vector>

#include "base/launch_env.h"
#include "dtrun/types.h"

namespace dtrun::runtime {

/// Which rank runs where.
struct Placement {
  std::vector<base::HostSlots> hosts;  ///< with the ranks on each
  std::vector<int> host_of_rank;       ///< index into `hosts`
};

/// From the launcher's word: ranks are numbered through the hosts.
Placement PlaceByHostList(const std::vector<base::HostSlots>& hosts);

/// From what MPI says, in any order of ranks: the lowest rank on the host of each rank, and the
/// host's name.
///
///   leaders {0, 1, 0}, names {"a", "b", "a"}  ->  hosts {a: 2, b: 1}, host_of_rank {0, 1, 0}
Placement PlaceByLeaders(const std::vector<int>& leaders, const std::vector<std::string>& names);

/// Where `rank` stands. local_rank counts the lower ranks of its host, cross_rank the lower hosts
/// that have a rank of the same local_rank.
Topology TopologyOf(const Placement& placement, int rank);

/// The CPUs that this process may run on, as a string of '0' and '1' by CPU number.
std::string AllowedCpus();

/// How many CPUs the control groups of this process let it use at a time, rounded up (versions 1
/// and 2, its own group and those above); nothing when there is no limit. `root` stands before the
/// paths of /proc and /sys.
std::optional<int> CpuQuota(const std::string& root = "");

/// How many CPUs at least one of the masks has.
int CountUnion(const std::vector<std::string>& masks);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_JOB_TOPOLOGY_H_
