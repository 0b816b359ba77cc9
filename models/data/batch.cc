#include "models/data/batch.h"

#include <algorithm>

#include "models/data/to_floats.h"

namespace dtrun::models {

void Batch::CopyInputs(uint64_t first, uint64_t count, float* out) const {
  const size_t stride = shape_.count();
  if (has_floats_) {
    std::copy_n(floats_.data() + first * stride, count * stride, out);
    return;
  }
  for (uint64_t i = first; i < first + count; ++i, out += stride) {
    if (rows_[i].bytes != nullptr) {
      BytesToFloats(rows_[i].bytes, stride, out);
    } else {
      std::copy_n(rows_[i].floats, stride, out);
    }
  }
}

const float* Batch::inputs() const {
  if (!has_floats_) {
    floats_.resize(size_ * shape_.count());
    CopyInputs(0, size_, floats_.data());
    has_floats_ = true;
  }
  return floats_.data();
}

}  // namespace dtrun::models
