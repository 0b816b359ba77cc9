#ifndef DTRUN_OPS_CUDA_PACK_H_
#define DTRUN_OPS_CUDA_PACK_H_

#include <cstdint>
#include <vector>

#include "dtrun/types.h"
#include "gpu/gpu_device.h"
#include "gpu/memory.h"

namespace dtrun::ops::cuda {

/// Tensors on a GPU that belong into one flat block there, side by side in their order: what brings
/// gradients into the memory that is reduced, and back. Each call is one launch, however many
/// tensors there are, and can be captured into a graph. Tensors and block are f32, f16 or bf16, the
/// tensors each of its own; elements are multiplied in f32 and rounded once, to nearest even, as
/// ops/reduce/reduce.h does. Immutable, so any thread.
class Pack {
 public:
  /// The tensors keep their places. Throws Error kInvalidArgument, naming the tensor by its number,
  /// for other types or one that does not lie on the device.
  Pack(const gpu::Device& device, const std::vector<Buffer>& tensors, DType block_dtype);

  /// Elements of the block.
  uint64_t count() const { return count_; }

  /// block[i] = scale * tensor[i], enqueued into `stream`; and back.
  void Gather(void* block, float scale, CUstream stream) const;
  void Scatter(const void* block, float scale, CUstream stream) const;

 private:
  void Launch(const char* kernel, void* block, float scale, CUstream stream) const;

  const gpu::Device& device_;
  DType block_dtype_;
  uint64_t count_ = 0;
  uint32_t piece_count_ = 0;
  gpu::DeviceMemory pieces_;
};

}  // namespace dtrun::ops::cuda

#endif
