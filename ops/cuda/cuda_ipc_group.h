#ifndef DTRUN_OPS_CUDA_CUDA_IPC_GROUP_H_
#define DTRUN_OPS_CUDA_CUDA_IPC_GROUP_H_

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu/gpu_device.h"
#include "ops/communicator/device_group.h"

namespace dtrun::ops::cuda {

/// The backend cuda_ipc, for ranks of one host. Each rank is a thread or a process, with its own
/// GPU or a shared GPU. Kernels of the ranks copy data to staging memory, read each other's staging
/// memory, and wait for each other by flags in that memory (collectives.cu). A collective can be
/// captured into a graph.
///
/// A reduction combines the inputs in rank order, in the tree of ops/reduce/reduce.h. All ranks get
/// the same bits as the CPU.
///
/// A kernel waits for the kernels of the other ranks, so all of them must be able to run at once. A
/// group therefore uses at most half of a GPU for all its ranks there. At most two groups should
/// have collectives under way on a GPU at once. The group does not order a collective in a graph
/// against collectives in other streams. The program orders them, in the same way on all ranks.

/// The reason why the ranks of `host` cannot have such a group, as far as this rank knows; "" if
/// they can.
std::string WhyNotCudaIpc(Communicator& host, const gpu::Device& device);

/// Collective over `host`. `host` must outlive the group; only the group's destructor may run after
/// `host` is gone. The destructor waits for the calls that this rank has enqueued outside graphs.
std::unique_ptr<DeviceGroup> CreateCudaIpcGroup(Communicator& host, const gpu::Device& device);

/// The cuda_ipc group of the ranks of one host, as a part of a larger group. Each of the other
/// hosts has such a part. A collective of the larger group is done in steps.
///
/// If the group of one host fails, the other hosts must hear of the failure. All ranks of a host
/// meet in the first step and in the last step of a collective. In between, each rank calls
/// TellHosts, exchanges the states with ranks of other hosts by another backend, and calls
/// HearHosts. A rank that hears of a failure ends its host's group. The last step tells all other
/// ranks of that host.
class HostGroup : public DeviceGroup {
 public:
  /// Enqueues a step of `whole`. The ranks compare `whole`, and errors name it. `signature` is the
  /// signature of `whole`.
  virtual void EnqueueStep(const Collective& step, const Collective& whole, uint64_t signature) = 0;
  /// Enqueues writing the state of this host, kStateBytes long, to `state` on this GPU. The state
  /// belongs to the call under way, and HearHosts on the other hosts reads it.
  virtual void TellHosts(void* state, uint64_t signature, CUstream stream) = 0;
  /// Enqueues reading the states of all hosts. If `states` is null, this only checks for GiveUp.
  virtual void HearHosts(const void* states, uint64_t signature, CUstream stream) = 0;
  /// Reports a failure between the hosts on this rank: a later HearHosts ends the group.
  /// Thread-safe.
  virtual void GiveUp() = 0;
};

constexpr uint64_t kStateBytes = 16;

/// Same as CreateCudaIpcGroup. `hosts`: the names of all hosts, in the order of the states.
std::unique_ptr<HostGroup> CreateHostGroup(
    Communicator& host, const gpu::Device& device, std::vector<std::string> hosts);

}  // namespace dtrun::ops::cuda

#endif
