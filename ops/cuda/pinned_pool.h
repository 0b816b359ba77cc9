#ifndef DTRUN_OPS_CUDA_PINNED_POOL_H_
#define DTRUN_OPS_CUDA_PINNED_POOL_H_

#include <cstdint>

#include "gpu/memory.h"

namespace dtrun::ops::cuda {

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

#endif
