#include "models/layers/batch_norm_kernels.h"

#include <algorithm>

#include "models/function_clones.h"

namespace dtrun::models {
namespace {

// Vectors of this many channels; floats are summed over so many pixels before they are added to
// doubles: fast, and exact to a few units in the last place of a float.
constexpr size_t kLanes = 16, kPixels = 32;

// One vector of channels, `lanes` of which exist.
DTRUN_KERNEL_PART void SumLanes(
    const float* x, const ChannelGroup& group, size_t lanes, const float* center, double* sums,
    double* squares) {
  for (size_t p = 0; p < group.pixels; p += kPixels) {
    const size_t end = std::min(p + kPixels, group.pixels);
    float sum[kLanes] = {}, square[kLanes] = {};
    for (size_t q = p; q < end; ++q) {
      for (size_t c = 0; c < lanes; ++c) {
        const float value = x[q * group.block + c] - center[c];
        sum[c] += value;
        square[c] += value * value;
      }
    }
    for (size_t c = 0; c < lanes; ++c) sums[c] += double{sum[c]};
    for (size_t c = 0; c < lanes; ++c) squares[c] += double{square[c]};
  }
}

DTRUN_KERNEL_PART void SumGradientLanes(
    const float* x, const float* dy, const ChannelGroup& group, size_t lanes, const float* center,
    double* sums, double* products) {
  for (size_t p = 0; p < group.pixels; p += kPixels) {
    const size_t end = std::min(p + kPixels, group.pixels);
    float sum[kLanes] = {}, product[kLanes] = {};
    for (size_t q = p; q < end; ++q) {
      for (size_t c = 0; c < lanes; ++c) {
        const size_t at = q * group.block + c;
        sum[c] += dy[at];
        product[c] += dy[at] * (x[at] - center[c]);
      }
    }
    for (size_t c = 0; c < lanes; ++c) sums[c] += double{sum[c]};
    for (size_t c = 0; c < lanes; ++c) products[c] += double{product[c]};
  }
}

DTRUN_KERNEL_PART void ScaleLanes(
    const float* __restrict x, const ChannelGroup& group, size_t lanes, const float* scale,
    const float* offset, float least, float* __restrict y) {
  for (size_t p = 0; p < group.pixels; ++p, x += group.block, y += group.block) {
    for (size_t c = 0; c < lanes; ++c) {
      const float value = scale[c] * x[c] + offset[c];
      y[c] = value < least ? least : value;
    }
  }
}

// Element by element, so that dx may be x.
DTRUN_KERNEL_PART void CombineLanes(
    const float* x, const float* dy, const ChannelGroup& group, size_t lanes, const float* a,
    const float* b, const float* d, float least, float* dx) {
  for (size_t p = 0; p < group.pixels; ++p) {
    float values[kLanes];
    const size_t at = p * group.block;
    for (size_t c = 0; c < lanes; ++c) {
      const float value = a[c] * dy[at + c] + b[c] * x[at + c] + d[c];
      values[c] = x[at + c] > least ? value : 0;
    }
    for (size_t c = 0; c < lanes; ++c) dx[at + c] = values[c];
  }
}

}  // namespace

DTRUN_KERNEL void CenteredSums(
    const float* x, const ChannelGroup& group, const float* center, double* sums, double* squares) {
  std::fill_n(sums, group.block, 0.0);
  std::fill_n(squares, group.block, 0.0);
  size_t c = 0;
  for (; c + kLanes <= group.block; c += kLanes)
    SumLanes(x + c, group, kLanes, center + c, sums + c, squares + c);
  if (c < group.block) SumLanes(x + c, group, group.block - c, center + c, sums + c, squares + c);
}

DTRUN_KERNEL void GradientSums(
    const float* x, const float* dy, const ChannelGroup& group, const float* center, double* sums,
    double* products) {
  std::fill_n(sums, group.block, 0.0);
  std::fill_n(products, group.block, 0.0);
  size_t c = 0;
  for (; c + kLanes <= group.block; c += kLanes)
    SumGradientLanes(x + c, dy + c, group, kLanes, center + c, sums + c, products + c);
  if (c < group.block) {
    SumGradientLanes(x + c, dy + c, group, group.block - c, center + c, sums + c, products + c);
  }
}

DTRUN_KERNEL void ScaleChannels(
    const float* x, const ChannelGroup& group, const float* scale, const float* offset, bool relu,
    float* y) {
  // So low that no value is lower, where there is no ReLU.
  const float least = relu ? 0.0f : -__builtin_inff();
  size_t c = 0;
  for (; c + kLanes <= group.block; c += kLanes)
    ScaleLanes(x + c, group, kLanes, scale + c, offset + c, least, y + c);
  if (c < group.block)
    ScaleLanes(x + c, group, group.block - c, scale + c, offset + c, least, y + c);
}

DTRUN_KERNEL void CombineGradients(
    const float* x, const float* dy, const ChannelGroup& group, const float* a, const float* b,
    const float* d, bool mask, float* dx) {
  const float least = mask ? 0.0f : -__builtin_inff();
  size_t c = 0;
  for (; c + kLanes <= group.block; c += kLanes)
    CombineLanes(x + c, dy + c, group, kLanes, a + c, b + c, d + c, least, dx + c);
  if (c < group.block)
    CombineLanes(x + c, dy + c, group, group.block - c, a + c, b + c, d + c, least, dx + c);
}

}  // namespace dtrun::models
