#ifndef DTRUN_RUNTIME_REDUCER_BUCKET_PLAN_H_
#define DTRUN_RUNTIME_REDUCER_BUCKET_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "dtrun/types.h"

namespace dtrun::runtime {

/// The facts about a gradient that a plan needs.
struct GradientSpec {
  std::string name;
  uint64_t count = 0;
  DType dtype = DType::kF32;
};

/// The size in bytes of a cache line, and of the widest vector.
inline constexpr uint64_t kCacheLine = 64;

/// Rounds `bytes` up to whole cache lines.
inline uint64_t Aligned(uint64_t bytes) {
  return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

/// A contiguous part of the gradient block that one operation reduces.
struct Bucket {
  uint64_t offset = 0;  ///< bytes from the start of the block
  uint64_t count = 0;   ///< elements, with padding between gradients, without flags
  DType dtype = DType::kF32;
  bool is_single = false;         ///< one large gradient, without padding
  std::vector<size_t> gradients;  ///< in block order; empty: a bucket of flags alone
  bool operator==(const Bucket&) const = default;
};

/// The place of the flags, one number per gradient. They are reduced with the last bucket.
struct FlagPlan {
  uint64_t offset = 0;        ///< bytes from the start of the block: behind the gradients
  uint64_t count = 0;         ///< elements, up to the next cache line
  DType dtype = DType::kF32;  ///< a float type: exact enough for any average of flags
};

/// The minimum size, in bytes, of a gradient with its own bucket.
inline constexpr uint64_t kSingleBytes = 1 << 20;

/// The settings of a plan. The same on all ranks.
struct PlanSettings {
  uint64_t bucket_bytes = 0;
  uint64_t first_bucket_bytes = 0;  ///< limit of the first bucket; if small, it starts early
  /// A gradient of at least this size has its own bucket, so that it can be reduced where it lies.
  uint64_t single_bytes = kSingleBytes;
  std::vector<std::vector<size_t>> groups = {};  ///< each of one dtype, and one bucket
  /// True: the flags cannot share a bucket with gradients, because the wire format has no floats.
  bool flags_apart = false;
};

/// The place and the bucket of each gradient. Pure data, equal on all ranks.
struct BucketPlan {
  std::vector<GradientSpec> gradients;
  PlanSettings settings;
  std::vector<Bucket> buckets;    ///< in the order in which they start
  std::vector<uint64_t> offsets;  ///< of each gradient, in bytes
  std::vector<size_t> bucket_of;  ///< the bucket of each gradient
  FlagPlan flags;
  uint64_t block_bytes = 0;
};

/// The order in which the backward pass is expected to reach gradients: last layer first.
std::vector<size_t> ReverseOrder(size_t count);

/// Lays out gradients in the order in which they become ready, each aligned to 64 bytes. A bucket
/// takes gradients of one dtype until it holds at least `bucket_bytes` (the first bucket:
/// `first_bucket_bytes`). No gradient is split. Buckets start in the order in which they become
/// complete. If the last bucket cannot carry the flags (it is single, holds no floats, or
/// `flags_apart` is set), a bucket of flags alone follows.
///
///   f32 counts {4, 4, 64}, bucket_bytes 256  ->  buckets {2}, {1, 0}
BucketPlan PlanBuckets(
    std::vector<GradientSpec> gradients, PlanSettings settings,
    const std::vector<size_t>& ready_order);

/// Cuts the same gradients, at the same offsets, into buckets for another ready order. If a
/// gradient becomes ready much later than its neighbours in the block, it delays none of them.
/// Large gradients and groups keep their buckets. The flags keep their place. They have their own
/// bucket unless the bucket in front of them starts last.
///
///   {3}, {2}, {1}, {0} and ready_order {3, 1, 0, 2}  ->  {3}, {1}, {0}, {2}, flags
BucketPlan Replan(const BucketPlan& plan, const std::vector<size_t>& ready_order);

/// Deals the gradients, in their order, to `group_count` groups with nearly equal numbers of
/// gradients. A group of several dtypes becomes one group per dtype.
///
///   5 gradients, 2 groups  ->  {0, 1, 2}, {3, 4}
std::vector<std::vector<size_t>> DealGroups(
    const std::vector<GradientSpec>& gradients, uint64_t group_count);

/// The automatic bucket size: a sixteenth of all gradients, so that little is left to reduce when
/// the last gradient is ready. It is at most 4 MiB. It is at least 1 MiB within one host and 64 KiB
/// otherwise, so that a bucket is worth the fixed cost of an operation.
uint64_t AutoBucketBytes(const std::vector<GradientSpec>& gradients, bool within_one_host);

/// Text for messages: "'conv/kernel' f32[288]"
std::string Describe(const GradientSpec& gradient);

}  // namespace dtrun::runtime

#endif
