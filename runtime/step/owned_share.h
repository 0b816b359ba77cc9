#ifndef DTRUN_RUNTIME_STEP_OWNED_SHARE_H_
#define DTRUN_RUNTIME_STEP_OWNED_SHARE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "dtrun/types.h"
#include "ops/collective/collective.h"
#include "ops/communicator/communicator_base.h"
#include "ops/reduce/reduce.h"
#include "runtime/reducer/bucket_plan.h"

namespace dtrun::runtime {

/// A part of a parameter within one bucket.
struct ShardSlice {
  size_t parameter = 0;
  uint64_t first = 0, count = 0;  ///< elements of the parameter
  uint64_t place = 0;             ///< position of `first`, in elements of the bucket
};

/// The share that each rank updates. Parameters and gradients have the same layout, each in a block
/// of their own. Pure data, equal on all ranks.
struct ShardPlan {
  BucketPlan layout;
  std::vector<ops::Counts> shares;  ///< by bucket: the elements of each rank

  /// The elements of bucket `bucket` that rank `rank` owns.
  ops::Range Share(size_t bucket, int rank) const;
  /// Appends the parts of parameters in elements `range` of bucket `bucket`, in order. Padding
  /// belongs to no part.
  void AppendSlices(size_t bucket, ops::Range range, std::vector<ShardSlice>& slices) const;
  /// The part of parameter `i` that rank `rank` owns.
  ShardSlice Owned(size_t i, int rank) const;

  /// The number of elements of each parameter.
  std::vector<uint64_t> counts;

 private:
  uint64_t PlaceOf(size_t i) const;
};

/// Divides every bucket evenly among the ranks, in whole cache lines. So two ranks never write to
/// the same cache line.
ShardPlan PlanShards(const std::vector<GradientSpec>& parameters, uint64_t bucket_bytes, int ranks);

/// The elements of one parameter that are to be updated.
struct ParameterSlice {
  size_t parameter = 0;
  uint64_t first = 0, count = 0;
  const void* gradient = nullptr;  ///< the reduced gradient of these elements
  void* value = nullptr;           ///< these elements; `slots` has their state
  void* const* slots = nullptr;
};

/// Updates a slice of this rank's share. The slices come in any order, and each element comes once
/// per step. It does not throw.
using SliceUpdate = std::function<void(const ParameterSlice&)>;

/// The share of one bucket that a rank owns.
struct OwnedShare {
  /// An array with one entry per element of the share.
  struct Column {
    char* data = nullptr;  ///< the entry of the share's first element
    uint64_t element = 0;  ///< bytes of an entry
  };

  ops::Range range;                ///< of the bucket, in elements
  std::vector<ShardSlice> slices;  ///< the parts of parameters in it, in order of place
  Column gradients, values;
  std::vector<Column> state;  ///< by slot
  /// Where a step that copies the state puts the new state of each slice, by slice and slot.
  std::vector<char*> state_copies = {};
};

/// Gives each share its `state_copies` from `places`, which has one for each slot of each slice, in
/// the order of the shares. Throws Error kInvalidArgument if the number of places is wrong.
void DealStateCopies(const std::vector<void*>& places, std::vector<OwnedShare>& shares);

/// Splits the pieces of a share into slices of parameters for the optimizer. The pieces come in
/// ascending order. Pieces are small, so the cursor neither searches nor allocates.
class SliceCursor {
 public:
  /// The share and the update outlive the cursor. `copies_state`: the state that `update` leaves
  /// also goes to the share's `state_copies`, complete after the thread's next ops::FenceStores().
  SliceCursor(const OwnedShare& share, const SliceUpdate& update, bool copies_state = false)
      : share_(&share), update_(&update), copies_state_(copies_state), slots_(share.state.size()) {}

  /// Updates elements [first, first + count) of the bucket. `reduced` has their gradient.
  void operator()(uint64_t first, uint64_t count, const void* reduced);

 private:
  void Update(size_t slice, uint64_t begin, uint64_t end, const char* gradient);
  void CopyState(size_t slice, uint64_t begin, uint64_t end) const;

  const OwnedShare* share_;
  const SliceUpdate* update_;
  bool copies_state_;
  size_t next_ = 0;  // slices before this index end before the next piece
  std::vector<void*> slots_;
};

/// SGD with momentum as an ops::Recurrence of the reduced gradient. State slot 0 is the
/// accumulator. Without a slot there is no accumulator.
struct MomentumStep {
  ops::Recurrence recurrence;
  std::vector<bool> frozen;  ///< by parameter: not updated; empty: all are updated
};

/// Updates a share of f32 parameters, in reduced pieces or, unreduced, all at once.
class MomentumUpdate {
 public:
  /// Both arguments outlive the update.
  MomentumUpdate(const OwnedShare& share, const MomentumStep& step);

  /// Updates elements [first, first + count) of the bucket.
  void operator()(uint64_t first, uint64_t count, const void* reduced) const;
  void operator()(uint64_t first, uint64_t count, const ops::UnreducedShare& unreduced) const;

 private:
  const OwnedShare* share_;
  const MomentumStep* step_;
  std::vector<ops::Range> runs_;  // ranges of the bucket with parameters that are not frozen
};

/// Returns the whole pages inside these pieces of host memory to the system, if the system takes
/// them. The content is lost, but the memory can be written and read again. Adjacent pieces, such
/// as the parameters of one model, count as one piece.
void ReleasePages(const std::vector<Buffer>& pieces);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_STEP_OWNED_SHARE_H_
