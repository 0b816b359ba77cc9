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
#include "runtime/reducer/bucket_plan.h"
#include "runtime/reducer/reducer_settings.h"
#include "runtime/reducer/wire_compression.h"

namespace dtrun::runtime {

/// The memory that a plan describes, which the backend reduces without a copy where it can, and
/// what moves gradients into it and out of it. It lies where the gradients do: in host memory, or
/// on a GPU, where all of this is enqueued and nothing waits. Not thread-safe.
class GradientBlock {
 public:
  virtual ~GradientBlock() = default;

  virtual Buffer gradient(size_t i) const = 0;
  /// Without the flags.
  virtual Buffer bucket(size_t b) const = 0;
  /// In host memory: behind the last bucket, reduced with it, or else apart, reduced by an
  /// operation of their own.
  virtual Buffer flags() = 0;
  virtual bool flags_are_apart() const = 0;

  /// Calls `progress` between pieces that fit into a cache.
  virtual void Copy(const Buffer& to, const void* from, const std::function<void()>& progress) = 0;
  virtual void Clear(const Buffer& buffer) = 0;
  /// After the plan has changed: between gradients there are zeros again.
  void Clear();

  /// Reductions from now on see all writes of the trainer so far.
  virtual void BeginReduction() = 0;
  /// Reads of the trainer from now on see all reductions so far.
  virtual void EndReductions() = 0;

  /// Collective. Gradients may be reduced where the trainer has them.
  virtual void Register(
      ops::Communicator& communicator, const std::vector<Gradient>& gradients) = 0;
  /// Waits for enqueued work. Returns whether no peer reads or writes here any more;
  /// `works` are the reductions of this step.
  virtual bool IsIdle(const std::vector<ops::Work>& works) = 0;
  /// Peers may read and write here for ever.
  virtual void Keep() = 0;

 protected:
  explicit GradientBlock(const BucketPlan& plan) : plan_(plan) {}
  /// At these places of `memory`.
  Buffer GradientAt(ops::Memory& memory, size_t i) const;
  Buffer BucketAt(ops::Memory& memory, size_t b) const;
  const BucketPlan& plan() const { return plan_; }

 private:
  const BucketPlan& plan_;
};

/// Collective. `plan` is kept, and may become another one of the same size. Throws Error
/// kUnavailable where gradients lie on a GPU that cannot be used.
std::unique_ptr<GradientBlock> MakeGradientBlock(
    ops::Communicator& communicator, const BucketPlan& plan,
    const std::vector<Gradient>& gradients);

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
