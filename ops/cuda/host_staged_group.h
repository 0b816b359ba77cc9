#ifndef DTRUN_OPS_CUDA_HOST_STAGED_GROUP_H_
#define DTRUN_OPS_CUDA_HOST_STAGED_GROUP_H_

#include <cstdint>
#include <memory>
#include <string>

#include "gpu/gpu_device.h"
#include "gpu/memory.h"
#include "ops/communicator/device_group.h"

namespace dtrun::ops::cuda {

/// The backend host_staged, for ranks that no other one serves: data goes to pinned host memory,
/// the communicator of the host does what was called, and the result goes back to the GPU.
///
/// Larger all_reduces, reduces, broadcasts, reduce_scatters and all_gathers go in chunks through
/// three blocks of pinned memory: while the host's communicator has chunk k, chunk k + 1 is on its
/// way to the host and chunk k - 1 back. The bits are those that the whole would have. The other
/// kinds, and messages, take as much pinned memory as they have data.
///
/// Unlike other backends its calls wait: for the stream, and for the other ranks (sends do not). So
/// they cannot be captured into a graph: kUnavailable. Errors are those of the host's communicator,
/// thrown by the call itself. What ranks call is compared before anything is written.

/// Of the data of a chunk. The bus takes about 80 us for 4 MiB at 50 GB/s, several times what it
/// takes to start two copies and a collective; and a message of 64 MiB has 16, so that the first
/// chunk's way to the host and the last one's way back, which nothing overlaps, are little of it.
constexpr uint64_t kStagedChunkBytes = 4 << 20;

/// "": any ranks can have one.
std::string WhyNotHostStaged(Communicator& host, const gpu::Device& device);

/// `host` outlives the group, but for its destructor, which waits for sends.
std::unique_ptr<DeviceGroup> CreateHostStagedGroup(
    Communicator& host, const gpu::Device& device, uint64_t chunk_bytes = kStagedChunkBytes);

/// Pinned memory that goes back to a pool of this process. The pool frees none, since that would
/// wait for all that the process does on a GPU, also for kernels that wait for another rank, which
/// may wait for this one. Blocks have sizes of powers of two, and are used again. Movable; any
/// thread.
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

}  // namespace dtrun::ops::cuda

#endif  // DTRUN_OPS_CUDA_HOST_STAGED_GROUP_H_
