#ifndef DTRUN_RUNTIME_GRADIENT_BLOCK_H_
#define DTRUN_RUNTIME_GRADIENT_BLOCK_H_

#include <cstring>
#include <memory>

#include "dtrun/types.h"
#include "ops/communicator.h"
#include "runtime/bucket_plan.h"
#include "runtime/device/device_gradients.h"

namespace dtrun::runtime {

/// The memory that a plan describes, which the backend reduces without a copy where it can.
class GradientBlock {
 public:
  /// Collective. `plan` is kept, and may become another one of the same size. `gpu`: of the
  /// gradients, which is kept too; null: they lie in host memory.
  GradientBlock(
      ops::Communicator& communicator, const BucketPlan& plan, int device, DeviceGradients* gpu)
      : plan_(plan),
        device_(device),
        gpu_(gpu),
        memory_(
            gpu == nullptr ? communicator.Allocate(plan.block_bytes)
                           : communicator.AllocateOnDevice(device, plan.block_bytes)) {}

  Buffer gradient(size_t i) const {
    const GradientSpec& spec = plan_.gradients[i];
    Buffer gradient(At(plan_.offsets[i]), spec.count, spec.dtype);
    if (gpu_ != nullptr) gradient.stream = gpu_->trainer_stream();
    gradient.device = device_;
    return gradient;
  }
  /// Without the flags; on a GPU, in the stream of the reductions.
  Buffer bucket(size_t b) const {
    const Bucket& bucket = plan_.buckets[b];
    Buffer all(At(bucket.offset), bucket.count, bucket.dtype);
    if (gpu_ != nullptr) all.stream = gpu_->reduction_stream();
    all.device = device_;
    return all;
  }
  /// Not where gradients lie on a GPU.
  Buffer flags() const {
    return Buffer(At(plan_.flags.offset), plan_.flags.count, plan_.flags.dtype);
  }

  /// After the plan has changed: between gradients there are zeros again.
  void Clear() {
    for (size_t b = 0; b < plan_.buckets.size(); ++b) {
      const Buffer all = bucket(b);
      if (plan_.buckets[b].is_single || all.count == 0) continue;
      if (gpu_ != nullptr) {
        gpu_->Clear(all);
      } else {
        std::memset(all.data, 0, all.bytes());
      }
    }
  }

  /// Peers may write there for ever.
  void Keep() { ops::Keep(std::move(memory_)); }

 private:
  void* At(uint64_t offset) const { return static_cast<char*>(memory_->data()) + offset; }

  const BucketPlan& plan_;
  const int device_;
  DeviceGradients* const gpu_;
  std::unique_ptr<ops::Memory> memory_;
};

}  // namespace dtrun::runtime

#endif
