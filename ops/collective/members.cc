#include <algorithm>
#include <functional>
#include <numeric>

#include "base/text.h"
#include "ops/collective/collective.h"

namespace dtrun::ops {

Members Members::World(int size) {
  Members members;
  members.world_ranks.resize(static_cast<size_t>(size));
  std::iota(members.world_ranks.begin(), members.world_ranks.end(), 0);
  return members;
}

Members Members::Subset(const std::vector<int>& ranks, const std::string& suffix) const {
  Members subset;
  subset.name = name + suffix;
  for (const int rank : ranks) {
    subset.world_ranks.push_back(world_ranks[static_cast<size_t>(rank)]);
    if (!hosts.empty()) subset.hosts.push_back(hosts[static_cast<size_t>(rank)]);
  }
  return subset;
}

bool Members::SharesHost() const {
  return std::adjacent_find(hosts.begin(), hosts.end(), std::not_equal_to<>()) == hosts.end();
}

std::string Members::List(const std::vector<int>& ranks) const {
  if (hosts.empty()) {
    std::vector<int> in_world;
    for (const int rank : ranks) in_world.push_back(world_ranks[static_cast<size_t>(rank)]);
    return base::RankList(in_world);
  }
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto rank = static_cast<size_t>(ranks[i]);
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += base::Text(world_ranks[rank], " (", hosts[rank], ")");
  }
  return text;
}

}  // namespace dtrun::ops
