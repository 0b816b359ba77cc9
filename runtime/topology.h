#ifndef DTRUN_RUNTIME_TOPOLOGY_H_
#define DTRUN_RUNTIME_TOPOLOGY_H_

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

}  // namespace dtrun::runtime

#endif
