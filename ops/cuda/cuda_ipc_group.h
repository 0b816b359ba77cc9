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

/// The backend cuda_ipc: ranks of one host, each a thread or a process with a GPU of its own or one
/// that it shares. Kernels of the ranks read each other's memory and wait for each other by flags
/// in it: see collectives.cu. A collective can be captured into a graph.
///
/// A reduction combines the inputs in the tree of ops/reduce/reduce.h, in rank order: the bits are
/// those of the CPU, the same on all ranks.
///
/// Buffers from DeviceGroup::Allocate, and all buffers where the ranks are threads of one process
/// that share the GPU, are read where they are; others go through staging memory, a piece at a
/// time.
///
/// Kernels wait for the other ranks', so these have to be able to run: a group uses at most half of
/// a GPU for all its ranks there. At most two groups should have collectives under way on a GPU at
/// once. A graph with collectives runs in the order of the others that its ranks have launched.

/// Why the ranks of `host` cannot have one; "" when they can, as far as this rank knows.
std::string WhyNotCudaIpc(Communicator& host, const gpu::Device& device);

/// Collective over `host`, which outlives the group, but for its destructor. That waits for what
/// this rank has enqueued, other than in graphs.
std::unique_ptr<DeviceGroup> CreateCudaIpcGroup(Communicator& host, const gpu::Device& device);

/// Such a group of the ranks of one host that is a part of a larger one, with a group like it on
/// each of the other hosts. A collective of the larger one is done in steps.
///
/// When the group has failed, other hosts have to hear of it, and the other way round. Ranks tell
/// each other between a first step, in which all ranks of a host meet, and a last one: TellHosts,
/// an exchange between ranks of different hosts that is not this group's, and HearHosts. The rank
/// that hears of a failure ends its host's group, and the last step tells all others there.
class HostGroup : public DeviceGroup {
 public:
  /// Enqueues a step of `whole`, by which the ranks compare what they have called, and which errors
  /// name. `signature` is that of `whole`.
  virtual void EnqueueStep(const Collective& step, const Collective& whole, uint64_t signature) = 0;
  /// Enqueues writing the state of this host, of kStateBytes, into memory of this GPU: for the call
  /// under way, and for HearHosts elsewhere.
  virtual void TellHosts(void* state, uint64_t signature, CUstream stream) = 0;
  /// Enqueues reading the states of all hosts; without any, looks for GiveUp alone.
  virtual void HearHosts(const void* states, uint64_t signature, CUstream stream) = 0;
  /// Something between the hosts has failed on this rank: HearHosts after this ends the group. Any
  /// thread.
  virtual void GiveUp() = 0;
};

constexpr uint64_t kStateBytes = 16;

/// As CreateCudaIpcGroup. `hosts`: the names of all hosts, in the order of the states.
std::unique_ptr<HostGroup> CreateHostGroup(
    Communicator& host, const gpu::Device& device, std::vector<std::string> hosts);

}  // namespace dtrun::ops::cuda

#endif
