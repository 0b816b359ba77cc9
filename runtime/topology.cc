#include "runtime/topology.h"

#include <algorithm>

namespace dtrun::runtime {

Placement PlaceByHostList(const std::vector<base::HostSlots>& hosts) {
  Placement placement{.hosts = hosts, .host_of_rank = {}};
  for (int rank = 0; rank < base::RankCount(hosts); ++rank) {
    placement.host_of_rank.push_back(base::HostOfRank(hosts, rank));
  }
  return placement;
}

Placement PlaceByLeaders(const std::vector<int>& leaders, const std::vector<std::string>& names) {
  Placement placement;
  std::vector<int> known;  // leader of each host
  for (size_t rank = 0; rank < leaders.size(); ++rank) {
    const auto found = std::find(known.begin(), known.end(), leaders[rank]);
    const auto host = static_cast<size_t>(found - known.begin());
    if (found == known.end()) {
      known.push_back(leaders[rank]);
      placement.hosts.push_back({names[rank], 0});
    }
    ++placement.hosts[host].slots;
    placement.host_of_rank.push_back(static_cast<int>(host));
  }
  return placement;
}

Topology TopologyOf(const Placement& placement, int rank) {
  const std::vector<int>& hosts = placement.host_of_rank;
  const int host = hosts[static_cast<size_t>(rank)];
  Topology topology{};
  topology.rank = rank;
  topology.size = static_cast<int32_t>(hosts.size());
  topology.local_size = placement.hosts[static_cast<size_t>(host)].slots;
  topology.local_rank = static_cast<int32_t>(std::count(hosts.begin(), hosts.begin() + rank, host));
  for (int other = 0; other < static_cast<int>(placement.hosts.size()); ++other) {
    if (placement.hosts[static_cast<size_t>(other)].slots <= topology.local_rank) continue;
    ++topology.cross_size;
    topology.cross_rank += other < host ? 1 : 0;
  }
  return topology;
}

}  // namespace dtrun::runtime
