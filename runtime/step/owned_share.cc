// Every bucket is cut into one share per rank. A SliceCursor hands the parameters in each piece of
// a share to the optimizer. A MomentumUpdate steps whole runs of parameters that are not frozen.

#include "runtime/step/owned_share.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/text.h"
#include "dtrun/error.h"
#include "dtrun/types.h"

namespace dtrun::runtime {
namespace {

ops::Counts ShareOut(uint64_t count, uint64_t element, int ranks) {
  const auto p = static_cast<uint64_t>(ranks), unit = kCacheLine / element;
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
    const uint64_t stop = std::min(EndOf(slices[i]), end);
    Update(i, begin, stop, static_cast<const char*>(reduced) + offset);
    if (copies_state_) CopyState(i, begin, stop);
  }
}

void SliceCursor::Update(size_t index, uint64_t begin, uint64_t end, const char* gradient) {
  const ShardSlice& slice = share_->slices[index];
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

void DealStateCopies(const std::vector<void*>& places, std::vector<OwnedShare>& shares) {
  const size_t slots = shares.empty() ? 0 : shares[0].state.size();
  size_t slices = 0;
  for (const OwnedShare& share : shares) slices += share.slices.size();
  if (places.size() != slices * slots) {
    throw Error(
        ErrorCode::kInvalidArgument,
        base::Text(
            "copies of the state in a step: found ", places.size(), " places, expected ",
            slices * slots, " for ", slices, " slices with ", slots, " slots"));
  }
  auto next = places.begin();
  for (OwnedShare& share : shares) {
    share.state_copies.clear();
    for (size_t n = share.slices.size() * slots; n > 0; --n)
      share.state_copies.push_back(static_cast<char*>(*next++));
  }
}

// The state is in the cache of this CPU, so that memory is only written.
void SliceCursor::CopyState(size_t index, uint64_t begin, uint64_t end) const {
  const uint64_t done = begin - share_->slices[index].place;
  for (size_t s = 0; s < slots_.size(); ++s) {
    const uint64_t element = share_->state[s].element;
    char* const to = share_->state_copies[index * slots_.size() + s] + done * element;
    ops::CopyUnfenced(to, slots_[s], (end - begin) * element);
  }
}

// Parameters that follow each other without a gap form one run.
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

namespace {

struct Extent {
  uintptr_t begin, end;
};

// The extents of the pieces, in ascending order. Adjacent extents are joined.
std::vector<Extent> Joined(const std::vector<Buffer>& pieces) {
  std::vector<Extent> extents;
  for (const Buffer& piece : pieces) {
    const auto begin = reinterpret_cast<uintptr_t>(piece.data);
    if (piece.bytes() > 0) extents.push_back({begin, begin + piece.bytes()});
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return a.begin < b.begin;
  });
  std::vector<Extent> joined;
  for (const Extent& extent : extents) {
    if (!joined.empty() && joined.back().end == extent.begin)
      joined.back().end = extent.end;
    else
      joined.push_back(extent);
  }
  return joined;
}

}  // namespace

// Pages that the system does not take, such as locked pages, stay as they are.
void ReleasePages(const std::vector<Buffer>& pieces) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (const Extent& extent : Joined(pieces)) {
    const uintptr_t first = (extent.begin + page - 1) / page * page, end = extent.end / page * page;
    if (first < end) ::madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
  }
}

}  // namespace dtrun::runtime
