#ifndef DTRUN_RUNTIME_BUCKET_PLAN_H_
#define DTRUN_RUNTIME_BUCKET_PLAN_H_

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

/// A contiguous part of the gradient block that is reduced by one operation.
struct Bucket {
  uint64_t offset = 0;  ///< bytes from the start of the block
  uint64_t count = 0;   ///< elements, padding between gradients included
  DType dtype = DType::kF32;
  bool is_single = false;         ///< one large gradient, without padding
  std::vector<size_t> gradients;  ///< in the order of the block
};

/// Which gradient lies where. Pure data, equal on all ranks.
struct BucketPlan {
  std::vector<Bucket> buckets;    ///< in the order in which they are started
  std::vector<uint64_t> offsets;  ///< of each gradient, bytes
  std::vector<size_t> bucket_of;  ///< of each gradient
  uint64_t block_bytes = 0;
};

/// A gradient of this size that fills a bucket has it alone, so that it can be reduced wherever it
/// lies.
inline constexpr uint64_t kSingleBytes = 1 << 20;

/// Gradients in reverse order, because backward reaches the last layer first, each aligned to 64
/// bytes. A bucket ends when it holds `bucket_bytes` or the dtype changes; a gradient is never cut.
///
///   f32 counts {4, 4, 64}, bucket_bytes 256  ->  buckets {2}, {1, 0}
BucketPlan PlanBuckets(const std::vector<GradientSpec>& gradients, uint64_t bucket_bytes);

/// Where the flags lie, one number per gradient.
struct FlagPlan {
  uint64_t offset = 0;  ///< bytes from the start of the block
  uint64_t count = 0;
  DType dtype = DType::kF32;  ///< a float type: any average of flags is exact enough to tell
};

/// Makes room for a flag per gradient at the end of the last bucket, so that the flags ride along
/// with it; a bucket of their own only where the last one holds no floats or is single.
FlagPlan AppendFlags(BucketPlan& plan);

/// A sixteenth of all gradients, so that little is left to reduce when the last one is ready, but
/// no less than the fixed cost of an operation is worth, which is more between hosts than what a
/// larger bucket saves within one: at least 64 KiB, within one host 1 MiB; at most 4 MiB.
uint64_t AutoBucketBytes(const std::vector<GradientSpec>& gradients, bool within_one_host);

/// "'conv/kernel' f32[288]"
std::string Describe(const GradientSpec& gradient);

}  // namespace dtrun::runtime

#endif
