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

namespace dtrun::runtime {

/// The memory of a plan, and the copies of gradients into it and out of it. If the backend can, it
/// reduces this memory without a copy. The memory lies where the gradients lie: in host memory or
/// on a GPU. On a GPU, copies and clears are enqueued, and the host does not wait for them. Not
/// thread-safe.
class GradientBlock {
 public:
  virtual ~GradientBlock() = default;

  virtual Buffer gradient(size_t i) const = 0;
  /// Bucket `b`, without the flags.
  virtual Buffer bucket(size_t b) const = 0;
  /// The flags, in host memory. They lie behind the last bucket and are reduced with it, or lie
  /// apart and are reduced by their own operation.
  virtual Buffer flags() = 0;
  virtual bool flags_are_apart() const = 0;

  /// Copies into `to`. In host memory, calls `progress` between pieces that fit into a cache.
  virtual void Copy(const Buffer& to, const void* from, const std::function<void()>& progress) = 0;
  virtual void Clear(const Buffer& buffer) = 0;
  /// After the plan has changed: makes the padding between gradients zero again.
  void Clear();

  /// Reductions from now on see all earlier writes of the trainer.
  virtual void BeginReduction() = 0;
  /// Reads of the trainer from now on see all earlier reductions.
  virtual void EndReductions() = 0;

  /// Waits for enqueued work. Returns true if no peer reads or writes this memory any more. `works`
  /// are the reductions of this step.
  virtual bool IsIdle(const std::vector<ops::Work>& works) = 0;
  /// Keeps the memory until the process ends, because peers may still read and write it.
  virtual void Keep() = 0;

 protected:
  explicit GradientBlock(const BucketPlan& plan) : plan_(plan) {}
  /// The gradient or bucket at its place in `memory`.
  Buffer GradientAt(ops::Memory& memory, size_t i) const;
  Buffer BucketAt(ops::Memory& memory, size_t b) const;
  const BucketPlan& plan() const { return plan_; }

 private:
  const BucketPlan& plan_;
};

/// True if all operations are done and none was given up.
bool AreDone(const std::vector<ops::Work>& works);

/// Collective. The block refers to `plan`, which may become another plan of the same size. Throws
/// Error kUnavailable if the gradients lie on a GPU that cannot be used.
std::unique_ptr<GradientBlock> MakeGradientBlock(
    ops::Communicator& communicator, const BucketPlan& plan,
    const std::vector<Gradient>& gradients);

/// A flag per gradient that tells whether any rank used the gradient in a step. The flags are
/// reduced like gradients. A flag is 0 or 1 in any float type. The operation decides which of the
/// two means "used", so that the yes of one rank outweighs the no of all others.
class UsedFlags {
 public:
  UsedFlags() = default;
  /// The flags lie in `where`.
  UsedFlags(ReduceOp op, Buffer where);

  void Set(size_t i, bool used) { Store(i, used ? used_ : unused_); }
  /// After the reduction: returns true if any rank has set the flag.
  bool WasUsed(size_t i) const { return Load(i) != unused_; }

 private:
  // Called once per gradient and step. Most flags have 4 bytes.
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
  size_t bytes_ = 0;  // of one flag
  uint64_t used_ = 0, unused_ = 0;
};

/// The buckets in the format in which they cross the wire, in host memory. Without a format, the
/// block is empty. It holds only buckets that the format compresses. The flags of a plan follow its
/// last bucket, unless they lie apart. Gradients on a GPU go through host memory: the host waits
/// for their stream and compresses a copy.
class WireBlock {
 public:
  /// `progress` is called between the pieces of a bucket.
  WireBlock(std::shared_ptr<WireFormat> format, std::function<void()> progress)
      : format_(std::move(format)), progress_(std::move(progress)) {}

  /// Collective. Lays out the buckets of `plan`, with or without its flags. No operation of the
  /// plan before is under way.
  void Lay(ops::Communicator& communicator, const BucketPlan& plan, bool with_flags);

  bool Has(size_t bucket) const { return bucket < slices_.size() && slices_[bucket].is_used; }
  /// The flags. Empty unless the last bucket is here and has them.
  Buffer flags() const { return flags_; }

  /// Fills the bucket from its gradients. Returns the buffer to reduce, with the flags.
  Buffer Compress(size_t bucket, const Buffer& gradients);
  void Decompress(size_t bucket, const Buffer& gradients);

  /// Keeps the memory until the process ends, because peers may still write to it.
  void Keep() { ops::Keep(std::move(memory_)); }

 private:
  struct Slice {
    Buffer buffer = {};
    uint64_t flags = 0;  // elements behind the buffer
    bool is_used = false;
  };

  // The bucket in host memory: itself, or a place for a copy.
  Buffer Here(const Buffer& gradients);
  template <typename Body>
  void ByPieces(const Buffer& gradients, const Buffer& wire, const Body& body);

  std::shared_ptr<WireFormat> format_;
  std::function<void()> progress_;
  std::unique_ptr<ops::Memory> memory_;
  std::vector<Slice> slices_;  // by bucket
  std::vector<char> copy_;     // of a bucket on a GPU
  Buffer flags_;
};

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_REDUCER_GRADIENT_BLOCK_H_
