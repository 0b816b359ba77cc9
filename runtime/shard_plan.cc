#include "runtime/shard_plan.h"

#include <algorithm>

#include "dtrun/types.h"

namespace dtrun::runtime {
namespace {

constexpr uint64_t kLine = 64;  // bytes

ops::Counts ShareOut(uint64_t count, uint64_t element, int ranks) {
  const auto p = static_cast<uint64_t>(ranks), unit = kLine / element;
  const uint64_t even = ((count + p - 1) / p + unit - 1) / unit * unit;
  ops::Counts shares;
  for (uint64_t left = count; shares.size() < p; left -= shares.back())
    shares.push_back(std::min(even, left));
  return shares;
}

}  // namespace

ShardPlan PlanShards(
    const std::vector<GradientSpec>& parameters, uint64_t bucket_bytes, int ranks) {
  ShardPlan plan;
  plan.layout = PlanBuckets(
      parameters,
      {.bucket_bytes = bucket_bytes,
       .first_bucket_bytes = bucket_bytes,
       .single_bytes = UINT64_MAX},
      ReverseOrder(parameters.size()));
  // Shards have no flags, so they need no bucket for flags alone.
  if (!plan.layout.buckets.empty() && plan.layout.buckets.back().gradients.empty())
    plan.layout.buckets.pop_back();
  for (const Bucket& bucket : plan.layout.buckets)
    plan.shares.push_back(ShareOut(bucket.count, SizeOf(bucket.dtype), ranks));
  for (const GradientSpec& parameter : parameters) plan.counts.push_back(parameter.count);
  return plan;
}

ops::Range ShardPlan::Share(size_t bucket, int rank) const {
  return ops::ShareOf(shares[bucket], rank);
}

uint64_t ShardPlan::PlaceOf(size_t i) const {
  const Bucket& bucket = layout.buckets[layout.bucket_of[i]];
  return (layout.offsets[i] - bucket.offset) / SizeOf(bucket.dtype);
}

void ShardPlan::AppendSlices(
    size_t bucket, ops::Range range, std::vector<ShardSlice>& slices) const {
  const std::vector<size_t>& parameters = layout.buckets[bucket].gradients;
  const uint64_t end = range.begin + range.count;
  auto next = std::partition_point(parameters.begin(), parameters.end(), [&](size_t i) {
    return PlaceOf(i) + counts[i] <= range.begin;
  });
  for (; next != parameters.end() && PlaceOf(*next) < end; ++next) {
    const uint64_t place = PlaceOf(*next);
    const uint64_t begin = std::max(place, range.begin);
    const uint64_t stop = std::min(place + counts[*next], end);
    if (begin < stop) slices.push_back({*next, begin - place, stop - begin, begin});
  }
}

ShardSlice ShardPlan::Owned(size_t i, int rank) const {
  const ops::Range share = Share(layout.bucket_of[i], rank);
  const uint64_t place = PlaceOf(i);
  const uint64_t begin = std::clamp(share.begin, place, place + counts[i]);
  const uint64_t end = std::clamp(share.begin + share.count, begin, place + counts[i]);
  return {i, begin - place, end - begin, begin};
}

}  // namespace dtrun::runtime
