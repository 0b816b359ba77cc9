#ifndef DTRUN_OPS_CUDA_PACK_H_
#define DTRUN_OPS_CUDA_PACK_H_

#include <cstdint>
#include <vector>

#include "dtrun/types.h"
#include "gpu/gpu_device.h"
#include "gpu/memory.h"

namespace dtrun::ops::cuda {

/// Copies tensors on a GPU into one flat block there, side by side in their order, and back.
/// Gradients go into the memory that is reduced, and out of it. A call is one launch for any number
/// of tensors, and can be captured into a graph. The block and each tensor are f32, f16 or bf16,
/// independently. Elements are multiplied in f32 and rounded once, to nearest even, as in
/// ops/reduce/reduce.h. Immutable and thread-safe.
class Pack {
 public:
  /// The tensors must stay in their places. Throws Error kInvalidArgument, with the tensor's
  /// number, for another type or a tensor that does not lie on the device.
  Pack(const gpu::Device& device, const std::vector<Buffer>& tensors, DType block_dtype);

  /// Elements of the block.
  uint64_t count() const { return count_; }

  /// Gather enqueues block[i] = scale * tensor[i] into `stream`; Scatter, tensor[i] = scale *
  /// block[i].
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
