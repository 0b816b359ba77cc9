#ifndef DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_DEVICE_GROUP_H_
#define DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_DEVICE_GROUP_H_

#include <cstdint>
#include <memory>
#include <string>

#include "gpu/gpu_device.h"
#include "ops/communicator/device_group.h"

namespace dtrun::ops::cuda {

/// The backend hierarchical, for ranks of several hosts, whose numbers of ranks may differ:
/// cuda_ipc within each host; between hosts NCCL, among the ranks of equal place on their hosts
/// (rank 0 to the last one that every host has: the rails), or host_staged where NCCL does not
/// serve one of the rails. hierarchical_plan.cc says what goes where.
///
/// A reduction combines the ranks of each host in Reduce's tree, then the hosts, as NCCL does it or
/// in that tree again. All ranks get the same bits. f16 and bf16 are rounded once for each of the
/// two levels. Averages are divided at the end.
///
/// all_to_all, gather, scatter, and messages to other hosts go by way of the hosts (host_staged),
/// and wait as it does; messages within a host are cuda_ipc's. The others do not wait, and can be
/// captured into a graph, where NCCL goes between hosts.
///
/// What ranks call is compared, on one host as cuda_ipc does it, and between hosts by an exchange
/// of 16 bytes over each rail, behind the first step on a host; where host_staged goes between
/// hosts, by an exchange of the hosts before anything is enqueued. A failure on one host ends the
/// groups of all.

struct HierarchicalOptions {
  /// Of data on its way together. 4 MiB for each rail: a rail is busy for 80 us with that at 50
  /// GB/s, several times what it takes to start the operation of NCCL; and what does not overlap is
  /// the first chunk's way up and the last one's way down, a few percent of 100 MiB.
  uint64_t chunk_bytes_per_rail = 4 << 20;
  /// Leaves it to NCCL to refuse ranks of a rail that share a GPU: it takes those whose NCCL_HOSTID
  /// differs.
  bool wanted = false;
};

/// Why this rank does not use it; "" when it does. One host, or one rank on each, is no reason
/// where it is wanted: then it is cuda_ipc, or nccl or host_staged, alone.
std::string WhyNotHierarchical(Communicator& host, const gpu::Device& device, bool wanted);

/// Collective over `host`, which outlives the group, but for its destructor. Throws Error
/// kUnavailable, on all ranks, when a host's ranks cannot have cuda_ipc.
std::unique_ptr<DeviceGroup> CreateHierarchicalGroup(
    Communicator& host, const gpu::Device& device, const HierarchicalOptions& options = {});

}  // namespace dtrun::ops::cuda

#endif
