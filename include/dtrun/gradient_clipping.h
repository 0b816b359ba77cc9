#ifndef DTRUN_GRADIENT_CLIPPING_H_
#define DTRUN_GRADIENT_CLIPPING_H_

#include <dtrun/types.h>

#include <cmath>
#include <cstdint>
#include <vector>

// How DistributedOptimizer clips; not for trainers.

namespace dtrun {
namespace detail {

/// Sum of squares of a gradient of f32 or f64, in f64, in four parts whose order never changes.
inline double SquaredNorm(const Buffer& buffer) {
  const auto sum = [&](const auto* values) {
    double parts[4] = {0, 0, 0, 0};
    for (uint64_t i = 0; i < buffer.count; ++i) {
      const double value = static_cast<double>(values[i]);
      parts[i % 4] += value * value;
    }
    return (parts[0] + parts[1]) + (parts[2] + parts[3]);
  };
  return buffer.dtype == DType::kF64 ? sum(static_cast<const double*>(buffer.data))
                                     : sum(static_cast<const float*>(buffer.data));
}

inline void Multiply(const Buffer& buffer, double factor) {
  if (buffer.dtype == DType::kF64) {
    auto* values = static_cast<double*>(buffer.data);
    for (uint64_t i = 0; i < buffer.count; ++i) values[i] *= factor;
  } else {
    auto* values = static_cast<float*>(buffer.data);
    for (uint64_t i = 0; i < buffer.count; ++i) values[i] *= static_cast<float>(factor);
  }
}

/// Clips gradients so that the norm of all of them together is at most `most`; returns the norm
/// that they had.
inline double ClipByNorm(const std::vector<Buffer>& gradients, double most) {
  double squares = 0;
  for (const Buffer& gradient : gradients) squares += SquaredNorm(gradient);
  const double norm = std::sqrt(squares);
  if (norm > most)
    for (const Buffer& gradient : gradients) Multiply(gradient, most / (norm + 1e-6));
  return norm;
}

}  // namespace detail
}  // namespace dtrun

#endif
