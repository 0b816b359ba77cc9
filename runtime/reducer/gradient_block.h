#ifndef DTRUN_RUNTIME_REDUCER_GRADIENT_BLOCK_H_
#define DTRUN_RUNTIME_REDUCER_GRADIENT_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "dtrun/types.h"
#include "ops/communicator/communicator_base.h"
#include "runtime/device/device_gradients.h"
#include "runtime/reducer/bucket_plan.h"
#include "runtime/reducer/wire_compression.h"

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

/// Whether any rank used a gradient in a step: a number for each, which is reduced like gradients.
/// 0 and 1 stand for it in any float type; which of them says "used" depends on the operation, so
/// that one rank's yes outweighs all others' no.
class UsedFlags {
 public:
  UsedFlags() = default;
  /// The numbers lie in `where`.
  UsedFlags(ReduceOp op, Buffer where);

  void Set(size_t i, bool used) { Store(i, used ? used_ : unused_); }
  /// After the reduction: whether a rank has set it.
  bool WasUsed(size_t i) const { return Load(i) != unused_; }

 private:
  // Once for each gradient of a step, and mostly of 4 bytes.
  void Store(size_t i, uint64_t bits) {
    if (bytes_ == 4)
      std::memcpy(data_ + 4 * i, &bits, 4);
    else
      std::memcpy(data_ + bytes_ * i, &bits, bytes_);
  }
  uint64_t Load(size_t i) const {
    uint64_t bits = 0;
    if (bytes_ == 4)
      std::memcpy(&bits, data_ + 4 * i, 4);
    else
      std::memcpy(&bits, data_ + bytes_ * i, bytes_);
    return bits;
  }

  char* data_ = nullptr;
  size_t bytes_ = 0;  // of one
  uint64_t used_ = 0, unused_ = 0;
};

/// Where buckets lie in the format in which they cross the wire. Without a format, or for buckets
/// that it is not for, there is nothing here. The flags of a plan follow its last bucket.
class WireBlock {
 public:
  /// `progress` is called between the pieces of a bucket.
  WireBlock(std::shared_ptr<WireFormat> format, std::function<void()> progress)
      : format_(std::move(format)), progress_(std::move(progress)) {}

  /// Collective. Nothing of the plan before is under way.
  void Lay(ops::Communicator& communicator, const BucketPlan& plan);

  bool Has(size_t bucket) const { return bucket < slices_.size() && slices_[bucket].is_used; }
  /// Only if the last bucket is here.
  Buffer flags() const { return flags_; }

  /// Fills the bucket from its gradients; returns what has to be reduced, flags included.
  Buffer Compress(size_t bucket, const Buffer& gradients);
  void Decompress(size_t bucket, const Buffer& gradients);

  /// Peers may write there for ever.
  void Keep() { ops::Keep(std::move(memory_)); }

 private:
  struct Slice {
    Buffer buffer = {};
    uint64_t flags = 0;  // elements behind it
    bool is_used = false;
  };

  template <typename Body>
  void ByPieces(const Buffer& gradients, const Buffer& wire, const Body& body);

  std::shared_ptr<WireFormat> format_;
  std::function<void()> progress_;
  std::unique_ptr<ops::Memory> memory_;
  std::vector<Slice> slices_;  // by bucket
  Buffer flags_;
};

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_REDUCER_GRADIENT_BLOCK_H_
