#ifndef DTRUN_MODELS_LAYERS_WEIGHT_GRADIENT_KERNELS_H_
#define DTRUN_MODELS_LAYERS_WEIGHT_GRADIENT_KERNELS_H_

#include <cstddef>

#include "models/layers/tensor.h"

namespace dtrun::models {

/// The weight gradient of a convolution whose input has few channels, such as a network's first
/// one: oneDNN has none for them without AVX-512, or fills the channels up to a whole vector.
///
///   kernel(i, j, c, f) = sum over examples, h, w of
///                        input(s * h + i - before, s * w + j - before, c) * gradient(h, w, f)
///   bias(f) = sum of gradient(h, w, f)
///
/// Sums of a micro-batch are added to those so far. Their order does not depend on the number of
/// OpenMP's threads. Not thread-safe.
class WeightGradient {
 public:
  /// The input's channels come last. Only where CanComputeWeightGradient says so.
  WeightGradient(
      const Shape& input, const Shape& output, int size, int stride, int before_rows,
      int before_columns, int output_block);

  /// Starts a new sum if `first`.
  void Add(const float* input, const float* gradient, int examples, bool first);
  /// kernel (size, size, input channels, filters), bias (filters) or null.
  void Write(float* kernel, float* bias) const;

 private:
  void AddPart(const float* input, const float* gradient, int examples, size_t group, float* sums);
  size_t SumsOfGroup() const;

  Shape input_, output_;
  int size_, stride_, before_rows_, before_columns_, block_;
  size_t groups_;
  FloatArray sums_;  // (part, group, i, c, j, lane), and behind them each group's bias
};

/// Square kernels up to 7, few input channels, and an output in groups of whole vectors.
bool CanComputeWeightGradient(int input_channels, int size, int output_block);

}  // namespace dtrun::models

#endif
