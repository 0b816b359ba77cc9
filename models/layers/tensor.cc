#include "models/layers/tensor.h"

#include <cstring>

namespace dtrun::models {

std::string ToString(const Shape& shape) {
  if (shape.pixels() == 1) return std::to_string(shape.channels);
  return std::to_string(shape.height) + "x" + std::to_string(shape.width) + "x" +
         std::to_string(shape.channels);
}

FloatArray::FloatArray(size_t count) : count_(count) {
  constexpr size_t kAlignment = 4096;
  const size_t bytes = (count * sizeof(float) + kAlignment) / kAlignment * kAlignment;
  data_.reset(static_cast<float*>(std::aligned_alloc(kAlignment, bytes)));
  if (data_ == nullptr) throw std::bad_alloc();
  std::memset(data_.get(), 0, bytes);
}

}  // namespace dtrun::models
