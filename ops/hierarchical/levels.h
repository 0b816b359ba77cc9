#ifndef DTRUN_OPS_HIERARCHICAL_LEVELS_H_
#define DTRUN_OPS_HIERARCHICAL_LEVELS_H_

#include "ops/collective.h"
#include "ops/hierarchical/arithmetic.h"

// The collectives that one over all ranks is made of: within a host, whose ranks own shards of the
// data, and between hosts.

namespace dtrun::ops::hierarchical {

/// Within a host: the first level of the reduction `whole`, each rank's shard of it to that rank.
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

/// Between the ranks that own a shard: the second level of the reduction `whole` over `size` ranks.
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

/// Within a host: shards to all of its ranks, or to one.
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

#endif
