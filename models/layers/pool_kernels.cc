#include "models/layers/pool_kernels.h"

#include <bit>
#include <cstring>

#include "models/function_clones.h"

namespace dtrun::models {
namespace {

// 2 x 2 windows along two rows of the input, 16 channels at a time. `column` and `to_column` are
// the steps from pixel to pixel in the input and in the output.
//
// The loops over 16 are written so that the compiler turns each of them into a few vector
// instructions: without a condition that could become a branch, and with one width per loop. That
// matters: the plain form takes 20 us per image of network C, this one less than the memory does.
DTRUN_KERNEL void PoolRow(
    const float* __restrict upper, const float* __restrict lower, size_t column, size_t to_column,
    int windows, float least, float* __restrict output, uint8_t* __restrict winners) {
  for (int w = 0; w < windows; ++w) {
    const float *x0 = upper, *x1 = upper + column, *x2 = lower, *x3 = lower + column;
    int32_t winner[16];
    for (int i = 0; i < 16; ++i) {
      const float best01 = x1[i] > x0[i] ? x1[i] : x0[i];
      const float best23 = x3[i] > x2[i] ? x3[i] : x2[i];
      const float best = best23 > best01 ? best23 : best01;
      const int32_t right01 = x1[i] > x0[i], right23 = x3[i] > x2[i], low = best23 > best01;
      const int32_t none = !(best > least);
      output[i] = best;
      winner[i] = (right01 + low * (2 + right23 - right01)) | -none;
    }
    for (int i = 0; i < 16; ++i) winners[i] = static_cast<uint8_t>(winner[i]);
    upper += 2 * column;
    lower += 2 * column;
    output += to_column;
    winners += to_column;
  }
}

DTRUN_KERNEL void UnpoolRow(
    const float* __restrict output_gradient, const uint8_t* __restrict winners, size_t column,
    size_t to_column, int windows, float* __restrict upper, float* __restrict lower) {
  for (int w = 0; w < windows; ++w) {
    float *x0 = upper, *x1 = upper + column, *x2 = lower, *x3 = lower + column;
    int32_t winner[16];
    for (int i = 0; i < 16; ++i) winner[i] = winners[i];
    for (int i = 0; i < 16; ++i) {
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

// So low that no value is lower, where there is no ReLU.
float LeastWinner(const Tensor& from) { return from.relu ? 0.0f : -__builtin_inff(); }

size_t OffsetOf(const Tensor& t, int h, int w, int c) {
  const size_t pixel = size_t(h) * size_t(t.shape.width) + size_t(w);
  return (size_t(c / t.block) * t.shape.pixels() + pixel) * size_t(t.block) + size_t(c % t.block);
}

bool IsVectorCase(const Tensor& from, const Tensor& to, int window) {
  return window == 2 && from.block % 16 == 0 && to.block % 16 == 0 && from.shape.channels % 16 == 0;
}

// Calls body(offset of the first window's upper left pixel, of its output) for every row of windows
// and 16 channels.
template <typename Body>
void ForEachRow(const Tensor& from, const Tensor& to, const Body& body) {
  for (int c = 0; c < to.shape.channels; c += 16) {
    for (int h = 0; h < to.shape.height; ++h)
      body(OffsetOf(from, 2 * h, 0, c), OffsetOf(to, h, 0, c));
  }
}

// Calls body(offset of the window's upper left pixel, of its output) for every value of the output.
template <typename Body>
void ForEachWindow(const Tensor& from, const Tensor& to, int window, const Body& body) {
  for (int c = 0; c < to.shape.channels; ++c) {
    for (int h = 0; h < to.shape.height; ++h) {
      for (int w = 0; w < to.shape.width; ++w)
        body(OffsetOf(from, h * window, w * window, c), OffsetOf(to, h, w, c));
    }
  }
}

// Steps in the input from a pixel to the one below and the one to its right.
struct Steps {
  explicit Steps(const Tensor& t)
      : row(size_t(t.shape.width) * size_t(t.block)), column(size_t(t.block)) {}

  // From the window's upper left pixel to its pixel `p`, counted row by row.
  size_t To(int p, int window) const {
    return size_t(p / window) * row + size_t(p % window) * column;
  }

  size_t row, column;
};

}  // namespace

void PoolForward(
    const Tensor& from, const Tensor& to, int window, const float* input, float* output,
    uint8_t* winners) {
  const Steps steps(from);
  const float least = LeastWinner(from);
  if (IsVectorCase(from, to, window)) {
    ForEachRow(from, to, [&](size_t x, size_t y) {
      PoolRow(
          input + x, input + x + steps.row, steps.column, size_t(to.block), to.shape.width, least,
          output + y, winners + y);
    });
    return;
  }
  ForEachWindow(from, to, window, [&](size_t x, size_t y) {
    int winner = 0;
    for (int p = 1; p < window * window; ++p) {
      if (input[x + steps.To(p, window)] > input[x + steps.To(winner, window)]) winner = p;
    }
    output[y] = input[x + steps.To(winner, window)];
    winners[y] = output[y] > least ? static_cast<uint8_t>(winner) : kPoolNone;
  });
}

void PoolBackward(
    const Tensor& from, const Tensor& to, int window, const float* output_gradient,
    const uint8_t* winners, float* input_gradient) {
  const Steps steps(from);
  const bool covered = from.shape.height % window == 0 && from.shape.width % window == 0;
  if (IsVectorCase(from, to, window)) {
    if (!covered) std::memset(input_gradient, 0, from.stride() * sizeof(float));
    ForEachRow(from, to, [&](size_t x, size_t y) {
      float* upper = input_gradient + x;
      UnpoolRow(
          output_gradient + y, winners + y, steps.column, size_t(to.block), to.shape.width, upper,
          upper + steps.row);
    });
    return;
  }
  std::memset(input_gradient, 0, from.stride() * sizeof(float));
  ForEachWindow(from, to, window, [&](size_t x, size_t y) {
    if (winners[y] != kPoolNone)
      input_gradient[x + steps.To(winners[y], window)] = output_gradient[y];
  });
}

}  // namespace dtrun::models
