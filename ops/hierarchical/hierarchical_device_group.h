#ifndef DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_DEVICE_GROUP_H_
#define DTRUN_OPS_HIERARCHICAL_HIERARCHICAL_DEVICE_GROUP_H_

#include <cstdint>
#include <memory>
#include <string>

#include "gpu/gpu_device.h"
#include "ops/communicator/device_group.h"

namespace dtrun::ops::cuda {

/// The GPU backend "hierarchical", for ranks of several hosts. Hosts may have different numbers of
/// ranks. Within a host it uses cuda_ipc. Between hosts, a rail connects the ranks with the same
/// local rank, for the local ranks that every host has. The rails use NCCL, or host_staged if NCCL
/// does not serve one of them. ops/collective/device_parts.cc describes the steps.
///
/// A reduction combines the ranks of each host in Reduce's tree, then the hosts. NCCL combines the
/// hosts in its own way, host_staged in that tree. All ranks get the same bits. f16 and bf16 are
/// rounded once on each of the two levels. Averages are divided at the end.
///
/// all_to_all, gather, scatter, and messages to other hosts use host_staged, and block as it does.
/// Messages within a host use cuda_ipc. The other collectives wait until all ranks have made them
/// and compare their calls, but wait for no GPU if the rails use NCCL. No call can be captured into
/// a graph.

struct HierarchicalOptions {
  /// Bytes per rail of the data that travels together. At 50 GB/s, a rail is busy with 4 MiB for 80
  /// us, several times as long as the start of an NCCL operation. Only the first chunk's way up and
  /// the last chunk's way down do not overlap with other work: a few percent of 100 MiB.
  uint64_t chunk_bytes_per_rail = 4 << 20;
  /// If true, NCCL is not probed first, so NCCL itself refuses ranks of a rail that share a GPU. It
  /// accepts them if their NCCL_HOSTID differs.
  bool wanted = false;
};

/// Why this rank cannot use the backend; "" if it can. If `wanted`, a single host and hosts of one
/// rank each are accepted. The group is then plain cuda_ipc, or plain nccl or host_staged.
/// Collective over `host`.
std::string WhyNotHierarchical(Communicator& host, const gpu::Device& device, bool wanted);

/// Collective over `host`, which must live until the group's destructor begins. Throws Error
/// kUnavailable, on all ranks, if the ranks of any host cannot use cuda_ipc.
std::unique_ptr<DeviceGroup> CreateHierarchicalGroup(
    Communicator& host, const gpu::Device& device, const HierarchicalOptions& options = {});

}  // namespace dtrun::ops::cuda

#endif
