#include "runtime/owned_share.h"

#include <algorithm>

namespace dtrun::runtime {
namespace {

uint64_t EndOf(const ShardSlice& slice) { return slice.place + slice.count; }

}  // namespace

void SliceCursor::operator()(uint64_t first, uint64_t count, const void* reduced) {
  const std::vector<ShardSlice>& slices = share_->slices;
  const uint64_t end = first + count;
  while (next_ < slices.size() && EndOf(slices[next_]) <= first) ++next_;
  for (size_t i = next_; i < slices.size() && slices[i].place < end; ++i) {
    const uint64_t begin = std::max(slices[i].place, first);
    const uint64_t offset = (begin - first) * share_->gradients.element;
    Update(
        slices[i], begin, std::min(EndOf(slices[i]), end),
        static_cast<const char*>(reduced) + offset);
  }
}

void SliceCursor::Update(
    const ShardSlice& slice, uint64_t begin, uint64_t end, const char* gradient) {
  const auto at = [&](const OwnedShare::Column& column) {
    return column.data + (begin - share_->range.begin) * column.element;
  };
  for (size_t s = 0; s < slots_.size(); ++s) slots_[s] = at(share_->state[s]);
  (*update_)(
      {.parameter = slice.parameter,
       .first = slice.first + begin - slice.place,
       .count = end - begin,
       .gradient = gradient,
       .value = at(share_->values),
       .slots = slots_.data()});
}

// Parameters that follow each other without a gap are one run.
MomentumUpdate::MomentumUpdate(const OwnedShare& share, const MomentumStep& step)
    : share_(&share), step_(&step) {
  for (const ShardSlice& slice : share.slices) {
    if (!step.frozen.empty() && step.frozen[slice.parameter]) continue;
    if (!runs_.empty() && runs_.back().begin + runs_.back().count == slice.place) {
      runs_.back().count += slice.count;
    } else {
      runs_.push_back({slice.place, slice.count});
    }
  }
}

void MomentumUpdate::operator()(uint64_t first, uint64_t count, const void* reduced) const {
  (*this)(first, count, ops::UnreducedShare{&reduced, 1, {}, nullptr, 0});
}

void MomentumUpdate::operator()(
    uint64_t first, uint64_t count, const ops::UnreducedShare& unreduced) const {
  std::vector<const void*> inputs(static_cast<size_t>(unreduced.input_count));
  std::vector<void*> copies(static_cast<size_t>(unreduced.copy_count));
  const auto float_at = [&](const OwnedShare::Column& column, uint64_t element) {
    return reinterpret_cast<float*>(column.data) + (element - share_->range.begin);
  };
  for (const ops::Range& run : runs_) {
    const uint64_t begin = std::max(run.begin, first);
    const uint64_t end = std::min(run.begin + run.count, first + count);
    if (begin >= end) continue;
    for (size_t i = 0; i < inputs.size(); ++i)
      inputs[i] = static_cast<const float*>(unreduced.inputs[i]) + (begin - first);
    for (size_t i = 0; i < copies.size(); ++i)
      copies[i] = static_cast<float*>(unreduced.copies[i]) + (begin - first);
    ops::ReduceAndRecur(
        inputs.data(), unreduced.input_count, unreduced.arithmetic, step_->recurrence,
        {.accumulator = share_->state.empty() ? nullptr : float_at(share_->state[0], begin),
         .values = float_at(share_->values, begin),
         .copies = copies.data(),
         .copy_count = unreduced.copy_count},
        end - begin);
  }
}

}  // namespace dtrun::runtime
