#ifndef DTRUN_RUNTIME_WIRE_BLOCK_H_
#define DTRUN_RUNTIME_WIRE_BLOCK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "dtrun/types.h"
#include "ops/communicator.h"
#include "runtime/bucket_plan.h"
#include "runtime/wire_format.h"

namespace dtrun::runtime {

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

#endif
