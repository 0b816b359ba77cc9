#include "models/layers/kernels.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "models/function_clones.h"

namespace dtrun::models {

DTRUN_KERNEL void Add(const float* __restrict from, size_t count, float* __restrict to) {
  for (size_t i = 0; i < count; ++i) to[i] += from[i];
}

DTRUN_KERNEL void AddScaled(
    const float* __restrict from, size_t count, float factor, float* __restrict to) {
  for (size_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

DTRUN_KERNEL double SumOfSquares(const float* values, size_t count) {
  constexpr size_t kLanes = 16;
  double sums[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane)
      sums[lane] += double{values[i + lane]} * double{values[i + lane]};
  }
  double total = 0;
  for (; i < count; ++i) total += double{values[i]} * double{values[i]};
  for (const double sum : sums) total += sum;
  return total;
}

DTRUN_KERNEL void ApplyRelu(size_t count, float* values) {
  for (size_t i = 0; i < count; ++i) values[i] = values[i] > 0 ? values[i] : 0;
}

DTRUN_KERNEL void MaskByRelu(
    const float* __restrict activation, size_t count, float* __restrict gradient) {
  for (size_t i = 0; i < count; ++i) gradient[i] = activation[i] > 0 ? gradient[i] : 0;
}

// Positive floats are positive integers; -0 and NaNs with a sign are no positive ones.
DTRUN_KERNEL void MaskByRelu(
    const Bf16* __restrict activation, size_t count, Bf16* __restrict gradient) {
  for (size_t i = 0; i < count; ++i) {
    const auto bits = static_cast<int16_t>(activation[i]);
    gradient[i] = static_cast<Bf16>(gradient[i] & -static_cast<int16_t>(bits > 0));
  }
}

void MaskByRelu(const Tensor& tensor, size_t examples) {
  const size_t count = examples * tensor.stride();
  if (tensor.dtype == DType::kBF16) {
    MaskByRelu(As<const Bf16>(tensor.data), count, As<Bf16>(tensor.gradient));
  } else {
    MaskByRelu(tensor.data, count, tensor.gradient);
  }
}

DTRUN_KERNEL void AddBias(
    const float* __restrict bias, size_t rows, size_t count, bool relu, float* __restrict values) {
  // So low that it changes nothing when there is no ReLU.
  const float least = relu ? 0.0f : -__builtin_inff();
  for (size_t row = 0; row < rows; ++row, values += count) {
    for (size_t i = 0; i < count; ++i) {
      const float value = values[i] + bias[i];
      values[i] = value < least ? least : value;
    }
  }
}

DTRUN_KERNEL void SumRows(
    const float* __restrict values, size_t rows, size_t count, bool add, float* __restrict sums) {
  if (!add) std::memset(sums, 0, count * sizeof(float));
  for (size_t row = 0; row < rows; ++row, values += count) {
    for (size_t i = 0; i < count; ++i) sums[i] += values[i];
  }
}

// In tiles that fit the first-level cache on both sides.
DTRUN_KERNEL void Transpose(
    const float* __restrict from, size_t rows, size_t columns, float* __restrict to) {
  constexpr size_t kTile = 16;
  for (size_t row = 0; row < rows; row += kTile) {
    const size_t row_end = std::min(row + kTile, rows);
    for (size_t column = 0; column < columns; ++column) {
      for (size_t r = row; r < row_end; ++r) to[column * rows + r] = from[r * columns + column];
    }
  }
}

DTRUN_KERNEL void ScaleKept(
    const uint8_t* __restrict keep, size_t count, float scale, float* __restrict values) {
  for (size_t i = 0; i < count; ++i) values[i] = keep[i] != 0 ? values[i] * scale : 0;
}

// A product of a bf16 and a float that is NaN keeps its upper bits, so the rounding cannot make it
// anything else.
DTRUN_KERNEL void ScaleKept(
    const uint8_t* __restrict keep, size_t count, float scale, Bf16* __restrict values) {
  for (size_t i = 0; i < count; ++i) {
    const float scaled = std::bit_cast<float>(uint32_t{values[i]} << 16) * scale;
    const uint32_t bits = std::bit_cast<uint32_t>(scaled);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    values[i] = static_cast<Bf16>(rounded & -uint32_t(keep[i] != 0));
  }
}

DTRUN_KERNEL void KeepBelow(
    const uint32_t* __restrict words, size_t groups, uint32_t threshold, uint8_t* __restrict keep) {
  constexpr size_t kWords = 64;
  for (size_t group = 0; group < groups; ++group, words += kWords, keep += 2 * kWords) {
    for (size_t i = 0; i < kWords; ++i) keep[i] = (words[i] & 0xffff) < threshold;
    for (size_t i = 0; i < kWords; ++i) keep[kWords + i] = (words[i] >> 16) < threshold;
  }
}

}  // namespace dtrun::models
