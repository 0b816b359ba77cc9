#include "runtime/step/sum_of_squares.h"

namespace dtrun::runtime {
namespace {

// In parts, of which a compiler makes vectors.
template <typename T>
double Sum(const T* values, uint64_t count) {
  constexpr uint64_t kParts = 16;
  double parts[kParts] = {};
  uint64_t i = 0;
  for (; i + kParts <= count; i += kParts) {
    for (uint64_t k = 0; k < kParts; ++k) {
      const auto value = static_cast<double>(values[i + k]);
      parts[k] += value * value;
    }
  }
  for (; i < count; ++i)
    parts[0] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  double sum = 0;
  for (const double part : parts) sum += part;
  return sum;
}

}  // namespace

double SumOfSquares(const Buffer& buffer) {
  if (buffer.dtype == DType::kF64)
    return Sum(static_cast<const double*>(buffer.data), buffer.count);
  return Sum(static_cast<const float*>(buffer.data), buffer.count);
}

}  // namespace dtrun::runtime
