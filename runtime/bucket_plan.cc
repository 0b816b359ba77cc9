#include "runtime/bucket_plan.h"

#include <algorithm>

#include "base/text.h"

namespace dtrun::runtime {
namespace {

constexpr uint64_t kAlignment = 64;  // bytes: a cache line, and the widest vector

uint64_t Aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

bool IsFloat(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32 ||
         dtype == DType::kF64;
}

}  // namespace

BucketPlan PlanBuckets(const std::vector<GradientSpec>& gradients, uint64_t bucket_bytes) {
  BucketPlan plan;
  plan.offsets.resize(gradients.size());
  plan.bucket_of.resize(gradients.size());
  bool full = true;
  for (size_t i = gradients.size(); i-- > 0;) {
    const GradientSpec& gradient = gradients[i];
    const uint64_t bytes = gradient.count * SizeOf(gradient.dtype);
    const bool is_single = bytes >= bucket_bytes && bytes >= kSingleBytes;
    if (full || is_single || plan.buckets.back().dtype != gradient.dtype) {
      plan.buckets.push_back(
          {.offset = plan.block_bytes,
           .count = 0,
           .dtype = gradient.dtype,
           .is_single = is_single,
           .gradients = {}});
    }
    Bucket& bucket = plan.buckets.back();
    plan.offsets[i] = plan.block_bytes;
    plan.bucket_of[i] = plan.buckets.size() - 1;
    plan.block_bytes += Aligned(bytes);
    bucket.gradients.push_back(i);
    const uint64_t filled = plan.block_bytes - bucket.offset;
    bucket.count = is_single ? gradient.count : filled / SizeOf(gradient.dtype);
    full = filled >= bucket_bytes;
  }
  return plan;
}

FlagPlan AppendFlags(BucketPlan& plan) {
  FlagPlan flags{.offset = plan.block_bytes, .count = plan.bucket_of.size(), .dtype = DType::kF32};
  if (flags.count == 0) return flags;
  if (!IsFloat(plan.buckets.back().dtype) || plan.buckets.back().is_single) {
    plan.buckets.push_back(
        {.offset = plan.block_bytes,
         .count = 0,
         .dtype = flags.dtype,
         .is_single = false,
         .gradients = {}});
  }
  Bucket& last = plan.buckets.back();
  flags.dtype = last.dtype;
  const uint64_t element = SizeOf(flags.dtype);
  plan.block_bytes += Aligned(flags.count * element);
  last.count = (plan.block_bytes - last.offset) / element;
  return flags;
}

uint64_t AutoBucketBytes(const std::vector<GradientSpec>& gradients, bool within_one_host) {
  uint64_t bytes = 0;
  for (const GradientSpec& gradient : gradients) bytes += gradient.count * SizeOf(gradient.dtype);
  const uint64_t least = within_one_host ? 1 << 20 : 64 << 10, most = 4 << 20;
  return std::clamp(bytes / 16, least, most);
}

std::string Describe(const GradientSpec& gradient) {
  return base::Text("'", gradient.name, "' ", NameOf(gradient.dtype), "[", gradient.count, "]");
}

}  // namespace dtrun::runtime
