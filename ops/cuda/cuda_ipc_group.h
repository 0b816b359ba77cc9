#ifndef DTRUN_OPS_CUDA_CUDA_IPC_GROUP_H_
#define DTRUN_OPS_CUDA_CUDA_IPC_GROUP_H_

#include <memory>
#include <string>

#include "gpu/device.h"
#include "ops/device_group.h"

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

}  // namespace dtrun::ops::cuda

#endif
