#ifndef DTRUN_OPS_HIERARCHICAL_HOST_MAP_H_
#define DTRUN_OPS_HIERARCHICAL_HOST_MAP_H_

#include <cstddef>
#include <vector>

#include "ops/collective.h"

namespace dtrun::ops {

/// Which ranks of a communicator share a host. Hosts are numbered in the order of their first
/// ranks, and the ranks of a host in their own order:
///
///   host_of_rank {7, 3, 7, 7}  ->  host 0: ranks 0, 2, 3; host 1: rank 1; one rail
class HostMap {
 public:
  /// Equal numbers mean the same host.
  explicit HostMap(const std::vector<int>& host_of_rank);

  int size() const { return static_cast<int>(host_.size()); }
  int host_count() const { return static_cast<int>(ranks_.size()); }
  int host(int rank) const { return host_[static_cast<size_t>(rank)]; }
  /// The place of `rank` among the ranks of its host.
  int local_rank(int rank) const { return local_rank_[static_cast<size_t>(rank)]; }
  const std::vector<int>& ranks(int host) const { return ranks_[static_cast<size_t>(host)]; }
  int local_size(int host) const { return static_cast<int>(ranks(host).size()); }
  /// Of every host the ranks 0 to rails - 1 talk to their like on the other hosts.
  int rails() const { return rails_; }

  /// Of some of the ranks, in the order given.
  HostMap Subset(const std::vector<int>& ranks) const;

 private:
  std::vector<int> host_, local_rank_;   // by rank
  std::vector<std::vector<int>> ranks_;  // by host
  int rails_ = 0;
};

/// How `count` elements are dealt to the rails, in whole cache lines: by local rank of a host with
/// `local_size` ranks, of which those without a rail get none.
Counts DealToRails(uint64_t count, DType dtype, int rails, int local_size);

}  // namespace dtrun::ops

#endif
