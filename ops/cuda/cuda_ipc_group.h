#ifndef DTRUN_OPS_CUDA_CUDA_IPC_GROUP_H_
#define DTRUN_OPS_CUDA_CUDA_IPC_GROUP_H_

#include <cstdint>
#include <memory>
#include <string>

#include "gpu/gpu_device.h"
#include "ops/communicator/device_group.h"

namespace dtrun::ops::cuda {

/// The backend cuda_ipc, for ranks of one host. Each rank is a thread or a process, with its own
/// GPU or a shared GPU. The ranks copy data to staging memory that all of them map, meet on their
/// GPUs, and read each other's staging memory (cuda_ipc_group.cc).
///
/// A reduction combines the inputs in rank order, in the tree of ops/reduce/reduce.h. All ranks get
/// the same bits as the CPU. A collective can be captured into a graph.
///
/// A GPU waits for the GPUs of the other ranks in a kernel of one block, so these kernels must be
/// able to run at once. The group does not order a collective in a graph against collectives in
/// other streams. The program orders them, in the same way on all ranks.

/// The reason why the ranks of `host` cannot have such a group, as far as this rank knows; "" if
/// they can. If `wanted`, processes may share a GPU without MPS: they get right results, but each
/// collective waits until the GPU has turned to the kernels of all ranks. Collective over `host`.
std::string WhyNotCudaIpc(Communicator& host, const gpu::Device& device, bool wanted);

/// The cuda_ipc group of the ranks of one host, on its own or as a part of a larger group.
class HostGroup : public DeviceGroup {
 public:
  /// Enqueues one step of `whole`, a collective of the larger group. The ranks of the host compare
  /// the step. Errors name `whole`.
  virtual void EnqueueStep(const Collective& step, const Collective& whole) = 0;
};

/// Collective over `host`. `host` must outlive the group; only the group's destructor may run after
/// `host` is gone. The destructor waits for the calls that this rank has enqueued outside graphs.
std::unique_ptr<HostGroup> CreateCudaIpcGroup(Communicator& host, const gpu::Device& device);

}  // namespace dtrun::ops::cuda

#endif
