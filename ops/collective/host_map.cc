#include "ops/collective/host_map.h"

#include <algorithm>

namespace dtrun::ops {

HostMap::HostMap(const std::vector<int>& host_of_rank) {
  std::vector<int> known;
  for (const int number : host_of_rank) {
    const auto found = std::find(known.begin(), known.end(), number);
    const auto host = static_cast<size_t>(found - known.begin());
    if (found == known.end()) {
      known.push_back(number);
      ranks_.emplace_back();
    }
    const int rank = size();
    host_.push_back(static_cast<int>(host));
    local_rank_.push_back(static_cast<int>(ranks_[host].size()));
    ranks_[host].push_back(rank);
  }
  rails_ = ranks_.empty() ? 0 : size();
  for (const auto& ranks : ranks_) rails_ = std::min(rails_, static_cast<int>(ranks.size()));
}

HostMap HostMap::Subset(const std::vector<int>& ranks) const {
  std::vector<int> hosts;
  for (const int rank : ranks) hosts.push_back(host(rank));
  return HostMap(hosts);
}

Counts DealToRails(uint64_t count, DType dtype, int rails, int local_size) {
  constexpr uint64_t kCacheLine = 64;
  const uint64_t line = kCacheLine / SizeOf(dtype);
  const uint64_t lines = (count + line - 1) / line;
  Counts shards = DealRows(lines, line, rails);
  // The last line may be shorter than a whole line.
  for (size_t r = shards.size(); r-- > 0;) {
    if (shards[r] == 0) continue;
    shards[r] -= lines * line - count;
    break;
  }
  shards.resize(static_cast<size_t>(local_size));
  return shards;
}

}  // namespace dtrun::ops
