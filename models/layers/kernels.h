#ifndef DTRUN_MODELS_LAYERS_KERNELS_H_
#define DTRUN_MODELS_LAYERS_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "models/layers/tensor.h"

namespace dtrun::models {

/// Element-wise kernels: what oneDNN has no primitive for, or none that makes one pass of it. Each
/// works on one thread, on memory of its caller.

/// to += from
void Add(const float* from, size_t count, float* to);

/// to += factor * from
void AddScaled(const float* from, size_t count, float factor, float* to);

/// Summed in double precision.
double SumOfSquares(const float* values, size_t count);

/// values = max(0, values)
void ApplyRelu(size_t count, float* values);

/// gradient = activation > 0 ? gradient : 0
void MaskByRelu(const float* activation, size_t count, float* gradient);
void MaskByRelu(const Bf16* activation, size_t count, Bf16* gradient);
/// The tensor's own gradient, of so many examples.
void MaskByRelu(const Tensor& tensor, size_t examples);

/// Each of `rows` rows of `values` += bias, and then max(0, it) if `relu`.
void AddBias(const float* bias, size_t rows, size_t count, bool relu, float* values);

/// sums = (add ? sums : 0) + the sum of the rows of `values`, added in row order
void SumRows(const float* values, size_t rows, size_t count, bool add, float* sums);

/// to (columns, rows) = from (rows, columns) transposed
void Transpose(const float* from, size_t rows, size_t columns, float* to);

/// values = keep ? values * scale : 0
void ScaleKept(const uint8_t* keep, size_t count, float scale, float* values);
/// The product is rounded to nearest, ties to even.
void ScaleKept(const uint8_t* keep, size_t count, float scale, Bf16* values);

/// keep[128 * g + i] for the 128 16-bit halves of each group of 64 random words: whether it is
/// below `threshold`. The low halves come first, then the high ones.
void KeepBelow(const uint32_t* words, size_t groups, uint32_t threshold, uint8_t* keep);

}  // namespace dtrun::models

#endif
