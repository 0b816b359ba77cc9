#include "ops/mpi/group.h"

#include <algorithm>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::ops::mpi {

int Tags::Take() {
  if (!free_.empty()) {
    const int tags = free_.back();
    free_.pop_back();
    return tags;
  }
  if (next_ > last_) {
    throw Error(
        ErrorCode::kUnavailable,
        base::Text(
            "more than ", next_ / kBlock - 1,
            " operations with data under way at once: this MPI has no more tags"));
  }
  return std::exchange(next_, next_ + kBlock);
}

Scratch::Block Scratch::Take(uint64_t bytes) {
  const auto fits = std::find_if(blocks_.begin(), blocks_.end(), [bytes](const Block& block) {
    return block.bytes >= bytes && block.bytes / 4 <= bytes;
  });
  if (fits == blocks_.end()) return {std::make_unique_for_overwrite<char[]>(bytes), bytes};
  Block block = std::move(*fits);
  blocks_.erase(fits);
  return block;
}

void Scratch::Give(Block block) {
  constexpr size_t kKept = 4;
  if (block.bytes == 0) return;
  if (blocks_.size() == kKept) blocks_.erase(blocks_.begin());
  blocks_.push_back(std::move(block));
}

}  // namespace dtrun::ops::mpi
