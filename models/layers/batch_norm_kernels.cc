#include "models/layers/batch_norm_kernels.h"

#include <algorithm>
#include <type_traits>

#include "models/function_clones.h"

namespace dtrun::models {
namespace {

// Floats are summed over so many pixels before they are added to doubles: fast, and exact to a few
// units in the last place of a float.
constexpr size_t kPixels = 32;

// Calls body(first channel, constant number of channels) for all channels of a group: 16 at a time,
// 8, and one by one what is left. The compiler makes vectors of a constant number alone.
template <typename Body>
DTRUN_KERNEL_PART void ForEachVector(size_t channels, const Body& body) {
  size_t c = 0;
  for (; c + 16 <= channels; c += 16) body(c, std::integral_constant<size_t, 16>());
  for (; c + 8 <= channels; c += 8) body(c, std::integral_constant<size_t, 8>());
  for (; c < channels; ++c) body(c, std::integral_constant<size_t, 1>());
}

// One vector of channels.
template <size_t kLanes>
DTRUN_KERNEL_PART void SumLanes(
    const float* x, const ChannelGroup& group, const float* center, double* sums, double* squares) {
  for (size_t p = 0; p < group.pixels; p += kPixels) {
    const size_t end = std::min(p + kPixels, group.pixels);
    float sum[kLanes] = {}, square[kLanes] = {};
    for (size_t q = p; q < end; ++q) {
      for (size_t c = 0; c < kLanes; ++c) {
        const float value = x[q * group.block + c] - center[c];
        sum[c] += value;
        square[c] += value * value;
      }
    }
    for (size_t c = 0; c < kLanes; ++c) sums[c] += double{sum[c]};
    for (size_t c = 0; c < kLanes; ++c) squares[c] += double{square[c]};
  }
}

template <size_t kLanes>
DTRUN_KERNEL_PART void SumGradientLanes(
    const float* x, const float* dy, const ChannelGroup& group, const float* center, double* sums,
    double* products) {
  for (size_t p = 0; p < group.pixels; p += kPixels) {
    const size_t end = std::min(p + kPixels, group.pixels);
    float sum[kLanes] = {}, product[kLanes] = {};
    for (size_t q = p; q < end; ++q) {
      for (size_t c = 0; c < kLanes; ++c) {
        const size_t at = q * group.block + c;
        sum[c] += dy[at];
        product[c] += dy[at] * (x[at] - center[c]);
      }
    }
    for (size_t c = 0; c < kLanes; ++c) sums[c] += double{sum[c]};
    for (size_t c = 0; c < kLanes; ++c) products[c] += double{product[c]};
  }
}

template <size_t kLanes>
DTRUN_KERNEL_PART void ScaleLanes(
    const float* __restrict x, const ChannelGroup& group, const float* scale, const float* offset,
    float least, float* __restrict y) {
  for (size_t p = 0; p < group.pixels; ++p, x += group.block, y += group.block) {
    for (size_t c = 0; c < kLanes; ++c) {
      const float value = scale[c] * x[c] + offset[c];
      y[c] = value < least ? least : value;
    }
  }
}

// Element by element, so that dx may be x.
template <size_t kLanes>
DTRUN_KERNEL_PART void CombineLanes(
    const float* x, const float* dy, const ChannelGroup& group, const float* a, const float* b,
    const float* d, float least, float* dx) {
  for (size_t p = 0; p < group.pixels; ++p) {
    float values[kLanes];
    const size_t at = p * group.block;
    for (size_t c = 0; c < kLanes; ++c) {
      const float value = a[c] * dy[at + c] + b[c] * x[at + c] + d[c];
      values[c] = x[at + c] > least ? value : 0;
    }
    for (size_t c = 0; c < kLanes; ++c) dx[at + c] = values[c];
  }
}

}  // namespace

DTRUN_KERNEL void CenteredSums(
    const float* x, const ChannelGroup& group, const float* center, double* sums, double* squares) {
  std::fill_n(sums, group.block, 0.0);
  std::fill_n(squares, group.block, 0.0);
  ForEachVector(
      group.block, [&](size_t c, auto lanes) __attribute__((always_inline)) {
        SumLanes<lanes()>(x + c, group, center + c, sums + c, squares + c);
      });
}

DTRUN_KERNEL void GradientSums(
    const float* x, const float* dy, const ChannelGroup& group, const float* center, double* sums,
    double* products) {
  std::fill_n(sums, group.block, 0.0);
  std::fill_n(products, group.block, 0.0);
  ForEachVector(
      group.block, [&](size_t c, auto lanes) __attribute__((always_inline)) {
        SumGradientLanes<lanes()>(x + c, dy + c, group, center + c, sums + c, products + c);
      });
}

DTRUN_KERNEL void ScaleChannels(
    const float* x, const ChannelGroup& group, const float* scale, const float* offset, bool relu,
    float* y) {
  // So low that no value is lower, where there is no ReLU.
  const float least = relu ? 0.0f : -__builtin_inff();
  ForEachVector(
      group.block, [&](size_t c, auto lanes) __attribute__((always_inline)) {
        ScaleLanes<lanes()>(x + c, group, scale + c, offset + c, least, y + c);
      });
}

DTRUN_KERNEL void CombineGradients(
    const float* x, const float* dy, const ChannelGroup& group, const float* a, const float* b,
    const float* d, bool mask, float* dx) {
  const float least = mask ? 0.0f : -__builtin_inff();
  ForEachVector(
      group.block, [&](size_t c, auto lanes) __attribute__((always_inline)) {
        CombineLanes<lanes()>(x + c, dy + c, group, a + c, b + c, d + c, least, dx + c);
      });
}

}  // namespace dtrun::models
