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

}  // namespace dtrun::runtime
