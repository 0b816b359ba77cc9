#ifndef DTRUN_RUNTIME_SHARD_PLAN_H_
#define DTRUN_RUNTIME_SHARD_PLAN_H_

#include <cstdint>
#include <vector>

#include "ops/collective.h"
#include "ops/share_update.h"
#include "runtime/bucket_plan.h"

namespace dtrun::runtime {

/// A part of a parameter that lies in one bucket.
struct ShardSlice {
  size_t parameter = 0;
  uint64_t first = 0, count = 0;  ///< elements of the parameter
  uint64_t place = 0;             ///< of `first`, in elements of the bucket
};

/// Which rank updates what. Parameters and their gradients lie alike, each kind in a block of its
/// own. Pure data, equal on all ranks.
struct ShardPlan {
  BucketPlan layout;
  std::vector<ops::Counts> shares;  ///< of each bucket, in elements by rank

  /// What rank `rank` owns of bucket `bucket`.
  ops::Range Share(size_t bucket, int rank) const;
  /// The parts of parameters in elements `range` of bucket `bucket`, in their order; padding
  /// belongs to none.
  void AppendSlices(size_t bucket, ops::Range range, std::vector<ShardSlice>& slices) const;
  /// The part of parameter `i` that rank `rank` owns.
  ShardSlice Owned(size_t i, int rank) const;

  /// Elements of each parameter.
  std::vector<uint64_t> counts;

 private:
  uint64_t PlaceOf(size_t i) const;
};

/// Every bucket is shared out evenly, in whole cache lines, so that two ranks never write to one.
ShardPlan PlanShards(const std::vector<GradientSpec>& parameters, uint64_t bucket_bytes, int ranks);

}  // namespace dtrun::runtime

#endif
