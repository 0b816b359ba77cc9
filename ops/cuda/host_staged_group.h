#ifndef DTRUN_OPS_CUDA_HOST_STAGED_GROUP_H_
#define DTRUN_OPS_CUDA_HOST_STAGED_GROUP_H_

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "gpu/gpu_device.h"
#include "gpu/memory.h"
#include "gpu/stream.h"
#include "ops/collective/collective.h"
#include "ops/communicator/device_group.h"
#include "ops/cuda/kernel_args.h"

namespace dtrun::ops::cuda {

/// The backend host_staged, for ranks that no other GPU backend serves. A call copies its data to
/// pinned host memory, runs the collective on the host's communicator, and copies the result back.
///
/// Large all_reduces, reduces, broadcasts, reduce_scatters and all_gathers go in chunks through one
/// block of pinned memory. The bits are the same as without chunks. Other kinds, and messages, take
/// as much pinned memory as they have data.
///
/// Unlike the calls of other backends, a call waits for the stream and for the other ranks. A send
/// does not wait for its receiver. Calls cannot be captured into a graph: kUnavailable. Errors are
/// those of the host's communicator, and the call itself throws them. The ranks compare their calls
/// before they write any output.

/// Bytes of data in a chunk. The bus takes about 80 us for 4 MiB at 50 GB/s, several times the cost
/// of starting two copies and a collective.
constexpr uint64_t kStagedChunkBytes = 4 << 20;

/// Any ranks can have such a group. `host` must outlive the group; only the group's destructor may
/// run after `host` is gone. The destructor waits for sends.
std::unique_ptr<DeviceGroup> CreateHostStagedGroup(
    Communicator& host, const gpu::Device& device, uint64_t chunk_bytes = kStagedChunkBytes);

// Parts that the groups of several GPU backends share.

/// A block of pinned memory from a pool of this process. The destructor returns the block to the
/// pool. The pool frees no memory, because freeing waits for all work of the process on a GPU. That
/// work may include a kernel of another rank that waits for this rank. The sizes of blocks are
/// powers of two. Movable. Different threads may create and destroy blocks at the same time.
class PinnedBlock {
 public:
  PinnedBlock() = default;
  /// Not zeroed. Throws Error kUnavailable.
  PinnedBlock(const gpu::Device& device, uint64_t bytes);
  ~PinnedBlock();
  PinnedBlock(PinnedBlock&&) noexcept = default;
  PinnedBlock& operator=(PinnedBlock&& other) noexcept;

  char* data() const { return memory_.as<char>(); }
  uint64_t bytes() const { return memory_.bytes(); }

 private:
  gpu::PinnedMemory memory_;
};

/// Zeroed memory of a GPU, for groups whose ranks need not reach each other's memory.
std::unique_ptr<Memory> AllocateOnGpu(const gpu::Device& device, uint64_t bytes);

/// Throws Error kUnavailable if the stream of the collective is being captured into a graph, of
/// which the backend cannot be a part.
void RefuseCapture(
    const gpu::Device& device, const Collective& collective, int rank, const char* backend);

/// The kernels of collectives.cu. gpu::Kernels::LoadAll knows them before their first use.
extern gpu::Kernels& collective_kernels;

/// The arguments of a kernel that does the arithmetic of `collective`, a reduction of `size` ranks,
/// over `inputs` arrays. All fields but the addresses and counts. Throws Error kUnavailable for
/// more than kMostInputs inputs.
ReduceArgs ReduceArgsOf(const Collective& collective, int size, int inputs);

/// Enqueues the reduction into `result`, whose type is that of all arrays.
void EnqueueReduce(
    const gpu::Device& device, ReduceArgs args, const Buffer& result, CUstream stream);

}  // namespace dtrun::ops::cuda

#endif  // DTRUN_OPS_CUDA_HOST_STAGED_GROUP_H_
