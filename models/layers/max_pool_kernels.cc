// Windows of 2 x 2 are taken row by row, with PoolRow and UnpoolRow, 16 or 8 channels at a time, if
// both formats allow it. ForEachWindow takes all other windows, value by value.

#include <bit>
#include <cstdint>
#include <cstring>

#include "models/function_clones.h"
#include "models/layers/cpu_kernels.h"

namespace dtrun::models {
namespace {

// Takes 2 x 2 windows along two rows of the input, `kLanes` channels at a time: 8 or 16, as the
// format allows. `column` is the step between pixels in the input, `to_column` in the output.
//
// The compiler must turn each loop over the lanes into a few vector instructions. Therefore the
// loops have no condition that could become a branch, and one width per loop. The plain form takes
// 20 us per image of network C. This form takes less time than the memory traffic.
template <int kLanes>
DTRUN_KERNEL_PART void PoolRowOf(
    const float* __restrict upper, const float* __restrict lower, size_t column, size_t to_column,
    int windows, float least, float* __restrict output, uint8_t* __restrict winners) {
  for (int w = 0; w < windows; ++w) {
    const float *x0 = upper, *x1 = upper + column, *x2 = lower, *x3 = lower + column;
    int32_t winner[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const float best01 = x1[i] > x0[i] ? x1[i] : x0[i];
      const float best23 = x3[i] > x2[i] ? x3[i] : x2[i];
      const float best = best23 > best01 ? best23 : best01;
      const int32_t right01 = x1[i] > x0[i], right23 = x3[i] > x2[i], low = best23 > best01;
      const int32_t none = !(best > least);
      output[i] = best;
      winner[i] = (right01 + low * (2 + right23 - right01)) | -none;
    }
    for (int i = 0; i < kLanes; ++i) winners[i] = static_cast<uint8_t>(winner[i]);
    upper += 2 * column;
    lower += 2 * column;
    output += to_column;
    winners += to_column;
  }
}

template <int kLanes>
DTRUN_KERNEL_PART void UnpoolRowOf(
    const float* __restrict output_gradient, const uint8_t* __restrict winners, size_t column,
    size_t to_column, int windows, float* __restrict upper, float* __restrict lower) {
  for (int w = 0; w < windows; ++w) {
    float *x0 = upper, *x1 = upper + column, *x2 = lower, *x3 = lower + column;
    int32_t winner[kLanes];
    for (int i = 0; i < kLanes; ++i) winner[i] = winners[i];
    for (int i = 0; i < kLanes; ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(output_gradient[i]);
      x0[i] = std::bit_cast<float>(bits & -uint32_t(winner[i] == 0));
      x1[i] = std::bit_cast<float>(bits & -uint32_t(winner[i] == 1));
      x2[i] = std::bit_cast<float>(bits & -uint32_t(winner[i] == 2));
      x3[i] = std::bit_cast<float>(bits & -uint32_t(winner[i] == 3));
    }
    upper += 2 * column;
    lower += 2 * column;
    output_gradient += to_column;
    winners += to_column;
  }
}

// Maps the bits of a bf16 to an integer with the same order. The map is its own inverse.
DTRUN_KERNEL_PART int16_t Order(int16_t bits) {
  return static_cast<int16_t>(bits ^ (bits >> 15 & 0x7fff));
}

// The same for bf16. Values of bf16 order like 16-bit integers, except for negative values, which
// Order() corrects.
template <int kLanes>
DTRUN_KERNEL_PART void PoolRowOf(
    const Bf16* __restrict upper, const Bf16* __restrict lower, size_t column, size_t to_column,
    int windows, int16_t least, Bf16* __restrict output, uint8_t* __restrict winners) {
  for (int w = 0; w < windows; ++w) {
    const Bf16 *x0 = upper, *x1 = upper + column, *x2 = lower, *x3 = lower + column;
    int16_t winner[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const int16_t k0 = Order(static_cast<int16_t>(x0[i]));
      const int16_t k1 = Order(static_cast<int16_t>(x1[i]));
      const int16_t k2 = Order(static_cast<int16_t>(x2[i]));
      const int16_t k3 = Order(static_cast<int16_t>(x3[i]));
      const int16_t best01 = k1 > k0 ? k1 : k0, best23 = k3 > k2 ? k3 : k2;
      const int16_t best = best23 > best01 ? best23 : best01;
      const int16_t right01 = k1 > k0, right23 = k3 > k2, low = best23 > best01;
      const int16_t none = !(best > least);
      output[i] = static_cast<Bf16>(Order(best));
      winner[i] = static_cast<int16_t>((right01 + low * (2 + right23 - right01)) | -none);
    }
    for (int i = 0; i < kLanes; ++i) winners[i] = static_cast<uint8_t>(winner[i]);
    upper += 2 * column;
    lower += 2 * column;
    output += to_column;
    winners += to_column;
  }
}

template <int kLanes>
DTRUN_KERNEL_PART void UnpoolRowOf(
    const Bf16* __restrict output_gradient, const uint8_t* __restrict winners, size_t column,
    size_t to_column, int windows, Bf16* __restrict upper, Bf16* __restrict lower) {
  for (int w = 0; w < windows; ++w) {
    Bf16 *x0 = upper, *x1 = upper + column, *x2 = lower, *x3 = lower + column;
    int16_t winner[kLanes];
    for (int i = 0; i < kLanes; ++i) winner[i] = winners[i];
    for (int i = 0; i < kLanes; ++i) {
      const int16_t bits = static_cast<int16_t>(output_gradient[i]);
      x0[i] = static_cast<Bf16>(bits & -int16_t(winner[i] == 0));
      x1[i] = static_cast<Bf16>(bits & -int16_t(winner[i] == 1));
      x2[i] = static_cast<Bf16>(bits & -int16_t(winner[i] == 2));
      x3[i] = static_cast<Bf16>(bits & -int16_t(winner[i] == 3));
    }
    upper += 2 * column;
    lower += 2 * column;
    output_gradient += to_column;
    winners += to_column;
  }
}

// For each of these functions, the compiler makes both widths for every instruction set.
DTRUN_KERNEL void PoolRow(
    int lanes, const float* upper, const float* lower, size_t column, size_t to_column, int windows,
    float least, float* output, uint8_t* winners) {
  if (lanes == 16) {
    PoolRowOf<16>(upper, lower, column, to_column, windows, least, output, winners);
  } else {
    PoolRowOf<8>(upper, lower, column, to_column, windows, least, output, winners);
  }
}

DTRUN_KERNEL void PoolRow(
    int lanes, const Bf16* upper, const Bf16* lower, size_t column, size_t to_column, int windows,
    int16_t least, Bf16* output, uint8_t* winners) {
  if (lanes == 16) {
    PoolRowOf<16>(upper, lower, column, to_column, windows, least, output, winners);
  } else {
    PoolRowOf<8>(upper, lower, column, to_column, windows, least, output, winners);
  }
}

DTRUN_KERNEL void UnpoolRow(
    int lanes, const float* output_gradient, const uint8_t* winners, size_t column,
    size_t to_column, int windows, float* upper, float* lower) {
  if (lanes == 16) {
    UnpoolRowOf<16>(output_gradient, winners, column, to_column, windows, upper, lower);
  } else {
    UnpoolRowOf<8>(output_gradient, winners, column, to_column, windows, upper, lower);
  }
}

DTRUN_KERNEL void UnpoolRow(
    int lanes, const Bf16* output_gradient, const uint8_t* winners, size_t column, size_t to_column,
    int windows, Bf16* upper, Bf16* lower) {
  if (lanes == 16) {
    UnpoolRowOf<16>(output_gradient, winners, column, to_column, windows, upper, lower);
  } else {
    UnpoolRowOf<8>(output_gradient, winners, column, to_column, windows, upper, lower);
  }
}

// The order of values, and the bound that the maximum of a window must exceed to have a winner. The
// bound is zero after a ReLU. Otherwise the bound is the least value of the order.
template <typename Value>
struct Ordered;
template <>
struct Ordered<float> {
  static float Of(float value) { return value; }
  static float Least(bool relu) { return relu ? 0.0f : -__builtin_inff(); }
};
template <>
struct Ordered<Bf16> {
  static int16_t Of(Bf16 value) { return Order(static_cast<int16_t>(value)); }
  static int16_t Least(bool relu) { return relu ? 0 : INT16_MIN; }
};

size_t OffsetOf(const Tensor& t, int h, int w, int c) {
  const size_t pixel = size_t(h) * size_t(t.shape.width) + size_t(w);
  return (size_t(c / t.block) * t.shape.pixels() + pixel) * size_t(t.block) + size_t(c % t.block);
}

// The number of channels to take at a time: they must be adjacent in both formats. 0: ForEachWindow
// takes single channels.
int LanesOf(const Tensor& from, const Tensor& to, int window) {
  for (const int lanes : {16, 8}) {
    if (window == 2 && from.block % lanes == 0 && to.block % lanes == 0 &&
        from.shape.channels % lanes == 0)
      return lanes;
  }
  return 0;
}

// Calls body(x, y) for every row of windows and every `lanes` channels. x is the offset of the
// upper left pixel of the first window, y is the offset of its output.
template <typename Body>
void ForEachRow(const Tensor& from, const Tensor& to, int lanes, const Body& body) {
  for (int c = 0; c < to.shape.channels; c += lanes) {
    for (int h = 0; h < to.shape.height; ++h)
      body(OffsetOf(from, 2 * h, 0, c), OffsetOf(to, h, 0, c));
  }
}

// Calls body(x, y) for every value of the output. x is the offset of the window's upper left pixel,
// y is the offset of the value.
template <typename Body>
void ForEachWindow(const Tensor& from, const Tensor& to, int window, const Body& body) {
  for (int c = 0; c < to.shape.channels; ++c) {
    for (int h = 0; h < to.shape.height; ++h) {
      for (int w = 0; w < to.shape.width; ++w)
        body(OffsetOf(from, h * window, w * window, c), OffsetOf(to, h, w, c));
    }
  }
}

// Steps in the input from a pixel to the pixel below and to the pixel on its right.
struct Steps {
  explicit Steps(const Tensor& t)
      : row(size_t(t.shape.width) * size_t(t.block)), column(size_t(t.block)) {}

  // The step from the upper left pixel of a window to its pixel `p`, counted row by row.
  size_t To(int p, int window) const {
    return size_t(p / window) * row + size_t(p % window) * column;
  }

  size_t row, column;
};

template <typename Value>
void Forward(
    const Tensor& from, const Tensor& to, int window, const Value* input, Value* output,
    uint8_t* winners) {
  const Steps steps(from);
  const auto least = Ordered<Value>::Least(from.relu);
  if (const int lanes = LanesOf(from, to, window); lanes > 0) {
    ForEachRow(from, to, lanes, [&](size_t x, size_t y) {
      PoolRow(
          lanes, input + x, input + x + steps.row, steps.column, size_t(to.block), to.shape.width,
          least, output + y, winners + y);
    });
    return;
  }
  ForEachWindow(from, to, window, [&](size_t x, size_t y) {
    const auto at = [&](int p) { return Ordered<Value>::Of(input[x + steps.To(p, window)]); };
    int winner = 0;
    for (int p = 1; p < window * window; ++p) {
      if (at(p) > at(winner)) winner = p;
    }
    output[y] = input[x + steps.To(winner, window)];
    winners[y] = at(winner) > least ? static_cast<uint8_t>(winner) : kPoolNone;
  });
}

template <typename Value>
void Backward(
    const Tensor& from, const Tensor& to, int window, const Value* output_gradient,
    const uint8_t* winners, Value* input_gradient) {
  const Steps steps(from);
  const bool covered = from.shape.height % window == 0 && from.shape.width % window == 0;
  if (const int lanes = LanesOf(from, to, window); lanes > 0) {
    if (!covered) std::memset(input_gradient, 0, from.stride() * sizeof(Value));
    ForEachRow(from, to, lanes, [&](size_t x, size_t y) {
      Value* upper = input_gradient + x;
      UnpoolRow(
          lanes, output_gradient + y, winners + y, steps.column, size_t(to.block), to.shape.width,
          upper, upper + steps.row);
    });
    return;
  }
  std::memset(input_gradient, 0, from.stride() * sizeof(Value));
  ForEachWindow(from, to, window, [&](size_t x, size_t y) {
    if (winners[y] != kPoolNone)
      input_gradient[x + steps.To(winners[y], window)] = output_gradient[y];
  });
}

}  // namespace

void PoolForward(
    const Tensor& from, const Tensor& to, int window, const float* input, float* output,
    uint8_t* winners) {
  Forward(from, to, window, input, output, winners);
}
void PoolForward(
    const Tensor& from, const Tensor& to, int window, const Bf16* input, Bf16* output,
    uint8_t* winners) {
  Forward(from, to, window, input, output, winners);
}

void PoolBackward(
    const Tensor& from, const Tensor& to, int window, const float* output_gradient,
    const uint8_t* winners, float* input_gradient) {
  Backward(from, to, window, output_gradient, winners, input_gradient);
}
void PoolBackward(
    const Tensor& from, const Tensor& to, int window, const Bf16* output_gradient,
    const uint8_t* winners, Bf16* input_gradient) {
  Backward(from, to, window, output_gradient, winners, input_gradient);
}

}  // namespace dtrun::models
