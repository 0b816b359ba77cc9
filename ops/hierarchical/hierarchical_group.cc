#include "ops/hierarchical/hierarchical_group.h"

#include <algorithm>

#include "ops/reduce/reduce.h"

namespace dtrun::ops::hierarchical {
namespace {

DType NarrowOf(WireDType wire) { return wire == WireDType::kF16 ? DType::kF16 : DType::kBF16; }

}  // namespace

std::shared_ptr<char> StagingPool::Take(uint64_t bytes) {
  const auto fits = [bytes](const Block& block) { return block.bytes >= bytes; };
  const auto found = std::find_if(free_.begin(), free_.end(), fits);
  Block block;
  if (found == free_.end()) {
    block = {std::unique_ptr<char[]>(new char[bytes]), bytes};
  } else {
    block = std::move(*found);
    free_.erase(found);
  }
  char* data = block.data.get();
  // The deleter must be copyable, so it cannot own the block.
  return std::shared_ptr<char>(
      data, [this, size = block.bytes, owned = block.data.release()](char*) {
        free_.push_back({std::unique_ptr<char[]>(owned), size});
      });
}

Staging::Staging(Group& group, uint64_t count, DType dtype) : buffer_(nullptr, count, dtype) {
  if (count == 0) return;
  memory_ = group.staging.Take(buffer_.bytes());
  buffer_.data = memory_.get();
}

WireBuffer::WireBuffer(Group& group, const Buffer& values)
    : staging_(group, values.count, NarrowOf(group.route.wire)), buffer_(staging_.buffer()) {
  if (!used()) return;
  Convert(values.data, values.dtype, buffer_.data, buffer_.dtype, values.count);
}

WireBuffer WireBuffer::Slice(const Range& range) const {
  WireBuffer slice = *this;
  slice.buffer_ = buffer_.Slice(range.begin, range.count);
  return slice;
}

void WireBuffer::WidenInto(const Buffer& values) const {
  if (!used() || values.count == 0) return;
  Convert(buffer_.data, buffer_.dtype, values.data, values.dtype, values.count);
}

}  // namespace dtrun::ops::hierarchical
