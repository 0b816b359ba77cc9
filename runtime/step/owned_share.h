#ifndef DTRUN_RUNTIME_STEP_OWNED_SHARE_H_
#define DTRUN_RUNTIME_STEP_OWNED_SHARE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "dtrun/types.h"
#include "ops/collective/collective.h"
#include "ops/communicator/share_update.h"
#include "ops/reduce/reduce.h"
#include "runtime/reducer/bucket_plan.h"

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

/// Elements of one parameter to be updated.
struct ParameterSlice {
  size_t parameter = 0;
  uint64_t first = 0, count = 0;
  const void* gradient = nullptr;  ///< of these elements: reduced
  void* value = nullptr;           ///< of these elements, as is the state
  void* const* slots = nullptr;
};

/// Called for slices that are each rank's own, in any order, each element once in a step. It does
/// not throw.
using SliceUpdate = std::function<void(const ParameterSlice&)>;

/// What a rank owns of one bucket.
struct OwnedShare {
  /// Data that the share's elements have, element by element.
  struct Column {
    char* data = nullptr;  ///< of the share's first element
    uint64_t element = 0;  ///< bytes
  };

  ops::Range range;                ///< of the bucket, in elements
  std::vector<ShardSlice> slices;  ///< the parameters in it, in order of place
  Column gradients, values;
  std::vector<Column> state;  ///< by slot
};

/// Hands the pieces of a share, as they come in ascending order, to the optimizer as slices of
/// parameters. Pieces are small: nothing is searched for, and nothing allocated.
class SliceCursor {
 public:
  /// Both outlive it.
  SliceCursor(const OwnedShare& share, const SliceUpdate& update)
      : share_(&share), update_(&update), slots_(share.state.size()) {}

  /// Elements [first, first + count) of the bucket, of which `reduced` has the gradient.
  void operator()(uint64_t first, uint64_t count, const void* reduced);

 private:
  void Update(const ShardSlice& slice, uint64_t begin, uint64_t end, const char* gradient);

  const OwnedShare* share_;
  const SliceUpdate* update_;
  size_t next_ = 0;  // slices before it lie before the next piece
  std::vector<void*> slots_;
};

/// SGD with momentum as ops::Recurrence has it: what is reduced is x, state slot 0 the accumulator
/// (none: without one).
struct MomentumStep {
  ops::Recurrence recurrence;
  std::vector<bool> frozen;  ///< by parameter: left as it is; empty: none is
};

/// Steps a share of f32 parameters, as pieces of what is reduced or all at once.
class MomentumUpdate {
 public:
  /// Both outlive it.
  MomentumUpdate(const OwnedShare& share, const MomentumStep& step);

  /// Elements [first, first + count) of the bucket.
  void operator()(uint64_t first, uint64_t count, const void* reduced) const;
  void operator()(uint64_t first, uint64_t count, const ops::UnreducedShare& unreduced) const;

 private:
  const OwnedShare* share_;
  const MomentumStep* step_;
  std::vector<ops::Range> runs_;  // of the bucket: elements of parameters that are not frozen
};

/// Gives the whole pages inside these pieces of host memory back to the system, as far as it takes
/// them. What stood there is lost; the memory itself may be written and read again. Pieces that lie
/// side by side, as the parameters of one model do, share pages.
void ReleasePages(const std::vector<Buffer>& pieces);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_STEP_OWNED_SHARE_H_
