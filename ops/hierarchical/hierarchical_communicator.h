#ifndef DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_COMMUNICATOR_H_
#define DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_COMMUNICATOR_H_

#include <memory>

#include "ops/collective/host_map.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"

namespace dtrun::ops {

/// Ranks of several hosts: `local` connects those of this rank's host, in their order here; `cross`
/// all ranks, and carries what goes from host to host. Both are this engine's. Hosts may have
/// different numbers of ranks, and ranks any order. Collective.
///
/// Each byte crosses the wire as seldom as it can: an all_reduce of n bytes over h hosts sends and
/// receives 2 (h - 1) / h n per host, however many ranks a host has; all_gather and broadcast bring
/// a byte to each host once.
///
/// A reduction combines the ranks of each host in Reduce's tree, in rank order, then the hosts in
/// the order of their first ranks: all ranks get the same bits, which depend on the placement of
/// the ranks but not on timing. Averages are divided once, at the end. f16 and bf16 are rounded
/// once for each of the two levels, so the sum of a host must not overflow f16.
///
/// With a `wire` dtype the f32 values of an all_reduce or reduce_scatter cross in 16 bits: the sum
/// of each host is rounded, the sums are added in f32, and the result is rounded; every rank gets
/// the same bits. A rounding is off by u of the value at most: 2^-8 for bf16, 2^-11 for f16 (below
/// 2^-14, f16 is off by 2^-25 instead). So the sum of the host sums s_1 .. s_h is off by at most
/// u (|s_1| + ... + |s_h|) + u |sum|, and what f32 itself rounds. Beyond 65504, f16 overflows to
/// infinity. What is so small that it travels with the calls (1 KiB at most) is not rounded.
///
/// On a flat route reductions go over `cross` alone, whose bits they have then.
std::unique_ptr<Communicator> CreateHierarchicalCommunicator(
    std::unique_ptr<Communicator> local, std::unique_ptr<Communicator> cross, const HostMap& hosts,
    const Route& route, Engine& engine, Members members);

}  // namespace dtrun::ops

#endif
