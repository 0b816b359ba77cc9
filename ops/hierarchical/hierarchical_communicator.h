#ifndef DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_COMMUNICATOR_H_
#define DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_COMMUNICATOR_H_

#include <memory>

#include "ops/collective/host_map.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"

namespace dtrun::ops {

/// A communicator of the ranks of several hosts. `local` connects the ranks of this rank's host, in
/// the order of their ranks here. `cross` connects all ranks and carries the data between hosts.
/// Both use `engine`. Hosts may have different numbers of ranks, and the ranks any order.
/// Collective.
///
/// Each byte crosses the wire as seldom as possible. In an all_reduce of n bytes over h hosts, each
/// host sends and receives 2 (h - 1) / h n bytes, however many ranks it has. all_gather and
/// broadcast bring a byte to each host once.
///
/// A reduction combines the ranks of each host in Reduce's tree, in rank order, then the hosts in
/// the order of their first ranks. All ranks get the same bits. The bits depend on the placement of
/// the ranks, but not on timing. Averages are divided once, at the end. f16 and bf16 are rounded
/// once on each of the two levels, so the sum of a host must not overflow f16.
///
/// With a `wire` dtype, the f32 values of an all_reduce or reduce_scatter cross in 16 bits. The sum
/// of each host is rounded, the sums are added in f32, and the result is rounded. Every rank gets
/// the same bits. The relative error u of a rounding is at most 2^-8 for bf16 and 2^-11 for f16.
/// (Below 2^-14, the error of f16 is at most 2^-25 absolute.) So the error of the sum of the host
/// sums s_1 .. s_h is at most u (|s_1| + ... + |s_h|) + u |sum|, plus the rounding of f32. Beyond
/// 65504, f16 overflows to infinity. Data that travels with the calls (at most 1 KiB) is not
/// rounded.
///
/// On a flat route, reductions go over `cross` alone and give its bits.
std::unique_ptr<Communicator> CreateHierarchicalCommunicator(
    std::unique_ptr<Communicator> local, std::shared_ptr<Communicator> cross, const HostMap& hosts,
    const Route& route, Engine& engine, Members members);

}  // namespace dtrun::ops

#endif
