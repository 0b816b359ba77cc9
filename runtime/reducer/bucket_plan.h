#ifndef DTRUN_RUNTIME_REDUCER_BUCKET_PLAN_H_
#define DTRUN_RUNTIME_REDUCER_BUCKET_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "dtrun/types.h"

namespace dtrun::runtime {

/// What a plan has to know of a gradient.
struct GradientSpec {
  std::string name;
  uint64_t count = 0;
  DType dtype = DType::kF32;
};

/// Bytes of a cache line, and of the widest vector.
inline constexpr uint64_t kCacheLine = 64;

/// `bytes`, up to the next cache line.
inline uint64_t Aligned(uint64_t bytes) {
  return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

/// A contiguous part of the gradient block that is reduced by one operation.
struct Bucket {
  uint64_t offset = 0;  ///< bytes from the start of the block
  uint64_t count = 0;   ///< elements, padding between gradients included, flags not
  DType dtype = DType::kF32;
  bool is_single = false;         ///< one large gradient, without padding
  std::vector<size_t> gradients;  ///< in the order of the block; none: of the flags alone
  bool operator==(const Bucket&) const = default;
};

/// Where the flags lie, one number per gradient. They ride along with the last bucket.
struct FlagPlan {
  uint64_t offset = 0;        ///< bytes from the start of the block: where the last bucket ends
  uint64_t count = 0;         ///< up to the next cache line
  DType dtype = DType::kF32;  ///< a float type: any average of flags is exact enough to tell
};

/// No smaller gradient has a bucket alone.
inline constexpr uint64_t kSingleBytes = 1 << 20;

/// How gradients become buckets. The same on all ranks.
struct PlanSettings {
  uint64_t bucket_bytes = 0;
  uint64_t first_bucket_bytes = 0;  ///< of the first bucket, so that it starts early
  /// A gradient of this size has a bucket alone, so that it can be reduced wherever it lies.
  uint64_t single_bytes = kSingleBytes;
  std::vector<std::vector<size_t>> groups = {};  ///< gradients of one dtype, a bucket each
  /// The flags cannot ride with gradients: their format on the wire carries no floats.
  bool flags_apart = false;
};

/// Which gradient lies where. Pure data, equal on all ranks.
struct BucketPlan {
  std::vector<GradientSpec> gradients;
  PlanSettings settings;
  std::vector<Bucket> buckets;    ///< in the order in which they are started
  std::vector<uint64_t> offsets;  ///< of each gradient, bytes
  std::vector<size_t> bucket_of;  ///< of each gradient
  FlagPlan flags;
  uint64_t block_bytes = 0;
};

/// The order in which backward reaches gradients, before anything is known: the last layer first.
std::vector<size_t> ReverseOrder(size_t count);

/// Lays out gradients in the order in which they become ready, each aligned to 64 bytes. A bucket
/// of each dtype fills up to `bucket_bytes` (the first one to `first_bucket_bytes`); a gradient is
/// never cut. Buckets are started in the order in which they become complete. A last bucket that
/// cannot carry the flags (it is single, or holds no floats) is followed by one for them alone.
///
///   f32 counts {4, 4, 64}, bucket_bytes 256  ->  buckets {2}, {1, 0}
BucketPlan PlanBuckets(
    std::vector<GradientSpec> gradients, PlanSettings settings,
    const std::vector<size_t>& ready_order);

/// The same gradients at the same offsets, cut into buckets for another order of readiness: one
/// that comes much later than its neighbours in the block holds none of them back. Large gradients
/// and groups stay the buckets that they are. The flags stay where they are, in a bucket of their
/// own unless what lies in front of them is started last.
///
///   {3}, {2}, {1}, {0} and ready_order {3, 1, 0, 2}  ->  {3}, {1}, {0}, {2}, flags
BucketPlan Replan(const BucketPlan& plan, const std::vector<size_t>& ready_order);

/// Gradients in their order, dealt to `group_count` groups as equal in number as can be; a group of
/// several dtypes becomes one of each.
///
///   5 gradients, 2 groups  ->  {0, 1, 2}, {3, 4}
std::vector<std::vector<size_t>> DealGroups(
    const std::vector<GradientSpec>& gradients, uint64_t group_count);

/// A sixteenth of all gradients, so that little is left to reduce when the last one is ready, but
/// no less than the fixed cost of an operation is worth, which is more between hosts than what a
/// larger bucket saves within one: at least 64 KiB, within one host 1 MiB; at most 4 MiB.
uint64_t AutoBucketBytes(const std::vector<GradientSpec>& gradients, bool within_one_host);

/// "'conv/kernel' f32[288]"
std::string Describe(const GradientSpec& gradient);

}  // namespace dtrun::runtime

#endif
