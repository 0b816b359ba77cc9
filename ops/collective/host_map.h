#ifndef DTRUN_OPS_COLLECTIVE_HOST_MAP_H_
#define DTRUN_OPS_COLLECTIVE_HOST_MAP_H_

#include <cstddef>
#include <vector>

#include "ops/collective/collective.h"
#include "ops/reduce/reduce.h"

namespace dtrun::ops {

/// The hosts of a communicator's ranks. Hosts are numbered in the order of their first ranks. The
/// ranks of a host keep their order:
///
///   host_of_rank {7, 3, 7, 7}  ->  host 0: ranks 0, 2, 3; host 1: rank 1; one rail
class HostMap {
 public:
  /// Equal numbers mean the same host.
  explicit HostMap(const std::vector<int>& host_of_rank);

  int size() const { return static_cast<int>(host_.size()); }
  int host_count() const { return static_cast<int>(ranks_.size()); }
  int host(int rank) const { return host_[static_cast<size_t>(rank)]; }
  /// The position of `rank` among the ranks of its host.
  int local_rank(int rank) const { return local_rank_[static_cast<size_t>(rank)]; }
  const std::vector<int>& ranks(int host) const { return ranks_[static_cast<size_t>(host)]; }
  int local_size(int host) const { return static_cast<int>(ranks(host).size()); }
  /// The number of rails. Local ranks 0 to rails() - 1 of each host exchange data with the same
  /// local rank of the other hosts.
  int rails() const { return rails_; }

  /// The map of the ranks in `ranks`, in that order.
  HostMap Subset(const std::vector<int>& ranks) const;

 private:
  std::vector<int> host_, local_rank_;   // by rank
  std::vector<std::vector<int>> ranks_;  // by host
  int rails_ = 0;
};

/// Deals `count` elements to the rails, in whole cache lines. Returns the counts by local rank of a
/// host with `local_size` ranks. Ranks without a rail get 0.
Counts DealToRails(uint64_t count, DType dtype, int rails, int local_size);

}  // namespace dtrun::ops

namespace dtrun::ops::hierarchical {

/// A reduction over all ranks is a reduction over the ranks of each host, then one over the hosts.
/// Only the first scales the inputs. Only the second divides and scales the result.
inline Arithmetic WithinHost(const Collective& collective) {
  const bool average = collective.op == ReduceOp::kAverage;
  return {
      .op = average ? ReduceOp::kSum : collective.op,
      .scale = {.before = collective.scale.before, .after = 1},
  };
}

inline Arithmetic BetweenHosts(const Collective& collective, int size) {
  return {
      .op = collective.op,
      .divisor = collective.divisor > 0 ? collective.divisor : size,
      .scale = {.before = 1, .after = collective.scale.after},
  };
}

// The collectives that make up a collective over all ranks: within a host, the ranks own shards of
// the data; between hosts, the owners of the same shard combine it.

/// Within a host: the first level of the reduction `whole`. Each rank gets its own shard.
inline Collective ReduceToShards(
    const Collective& whole, const Buffer& input, const Buffer& own_shard, const Counts& shards) {
  const Arithmetic arithmetic = WithinHost(whole);
  return {
      .kind = CollectiveKind::kReduceScatter,
      .input = input,
      .output = own_shard,
      .op = arithmetic.op,
      .scale = arithmetic.scale,
      .send_counts = shards,
  };
}

/// Between the owners of a shard: the second level of the reduction `whole` over `size` ranks.
inline Collective CombineHosts(
    const Collective& whole, int size, CollectiveKind kind, const Buffer& input,
    const Buffer& output, int root_host = 0) {
  const Arithmetic arithmetic = BetweenHosts(whole, size);
  return {
      .kind = kind,
      .input = input,
      .output = output,
      .op = arithmetic.op,
      .scale = arithmetic.scale,
      .divisor = arithmetic.divisor,
      .root = root_host,
  };
}

/// Within a host: brings the shards to all of its ranks, or to one rank.
inline Collective AllGatherShards(
    const Buffer& own_shard, const Buffer& chunk, const Counts& shards) {
  return {
      .kind = CollectiveKind::kAllGather,
      .input = own_shard,
      .output = chunk,
      .receive_counts = shards,
  };
}
inline Collective GatherShards(
    const Buffer& own_shard, const Buffer& chunk, int local_root, const Counts& shards) {
  return {
      .kind = CollectiveKind::kGather,
      .input = own_shard,
      .output = chunk,
      .root = local_root,
      .receive_counts = shards,
  };
}

inline Collective BroadcastFrom(int root, const Buffer& buffer) {
  return {.kind = CollectiveKind::kBroadcast, .input = buffer, .output = buffer, .root = root};
}

}  // namespace dtrun::ops::hierarchical

#endif  // DTRUN_OPS_COLLECTIVE_HOST_MAP_H_
