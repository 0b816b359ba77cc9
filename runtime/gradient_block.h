#ifndef DTRUN_RUNTIME_GRADIENT_BLOCK_H_
#define DTRUN_RUNTIME_GRADIENT_BLOCK_H_

#include <cstring>
#include <memory>

#include "dtrun/types.h"
#include "ops/communicator.h"
#include "runtime/bucket_plan.h"

namespace dtrun::runtime {

/// The memory that a plan describes, which the backend reduces without a copy where it can.
class GradientBlock {
 public:
  /// Collective. `plan` is kept, and may become another one of the same size.
  GradientBlock(ops::Communicator& communicator, const BucketPlan& plan)
      : plan_(plan), memory_(communicator.Allocate(plan.block_bytes)) {}

  Buffer gradient(size_t i) const {
    const GradientSpec& spec = plan_.gradients[i];
    return Buffer(At(plan_.offsets[i]), spec.count, spec.dtype);
  }
  /// Without the flags.
  Buffer bucket(size_t b) const {
    const Bucket& bucket = plan_.buckets[b];
    return Buffer(At(bucket.offset), bucket.count, bucket.dtype);
  }
  Buffer flags() const {
    return Buffer(At(plan_.flags.offset), plan_.flags.count, plan_.flags.dtype);
  }

  /// After the plan has changed: between gradients there are zeros again.
  void Clear() {
    for (size_t b = 0; b < plan_.buckets.size(); ++b) {
      const Buffer all = bucket(b);
      if (!plan_.buckets[b].is_single && all.count > 0) std::memset(all.data, 0, all.bytes());
    }
  }

  /// Peers may write there for ever.
  void Keep() { ops::Keep(std::move(memory_)); }

 private:
  void* At(uint64_t offset) const { return static_cast<char*>(memory_->data()) + offset; }

  const BucketPlan& plan_;
  std::unique_ptr<ops::Memory> memory_;
};

}  // namespace dtrun::runtime

#endif
