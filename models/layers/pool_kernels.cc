#include "models/layers/pool_kernels.h"

#include <cstring>

#include "models/function_clones.h"

namespace dtrun::models {
namespace {

// Some channels of one output pixel, contiguous on both sides.
struct Run {
  size_t input, output;  // offsets of the window's first pixel and of the output pixel
};

size_t OffsetOf(const Tensor& t, int h, int w, int c) {
  const size_t pixel = size_t(h) * size_t(t.shape.width) + size_t(w);
  return (size_t(c / t.block) * t.shape.pixels() + pixel) * size_t(t.block) + size_t(c % t.block);
}

// How many channels are contiguous on both sides. 16 has vector code.
int RunLength(const Tensor& from, const Tensor& to) {
  const int channels = from.shape.channels;
  if (from.block % 16 == 0 && to.block % 16 == 0 && channels % 16 == 0) return 16;
  return from.block == to.block ? from.block : 1;
}

// Calls body(run) for every output pixel and `length` channels of it. Channels that fill up a group
// are worked on like others where both formats have them: they stay zero.
template <typename Body>
DTRUN_KERNEL_PART void ForEachRun(
    const Tensor& from, const Tensor& to, int window, int length, Body body) {
  const Shape& out = to.shape;
  const int channels = from.block == to.block ? to.blocks() * to.block : out.channels;
  for (int c = 0; c < channels; c += length) {
    for (int h = 0; h < out.height; ++h) {
      Run run{OffsetOf(from, h * window, 0, c), OffsetOf(to, h, 0, c)};
      for (int w = 0; w < out.width; ++w) {
        body(run);
        run.input += size_t(window) * size_t(from.block);
        run.output += size_t(to.block);
      }
    }
  }
}

// The general case: any window, any number of channels.
struct AnyWindow {
  int window, length;
  size_t row, column;  // steps in the input from one pixel of the window to the next

  size_t Pixel(int p) const { return size_t(p / window) * row + size_t(p % window) * column; }

  DTRUN_KERNEL_PART void Pool(const float* x, bool relu, float* y, uint8_t* winners) const {
    for (int i = 0; i < length; ++i) {
      float best = x[i];
      int winner = 0;
      for (int p = 1; p < window * window; ++p) {
        const float value = x[Pixel(p) + size_t(i)];
        winner = value > best ? p : winner;
        best = value > best ? value : best;
      }
      y[i] = best;
      winners[i] = static_cast<uint8_t>(relu && !(best > 0) ? kPoolNone : winner);
    }
  }

  DTRUN_KERNEL_PART void Unpool(const float* dy, const uint8_t* winners, float* dx) const {
    for (int p = 0; p < window * window; ++p) {
      for (int i = 0; i < length; ++i) dx[Pixel(p) + size_t(i)] = winners[i] == p ? dy[i] : 0;
    }
  }
};

// Sixteen channels as one vector: the compiler makes one AVX-512 register of it, or several of a
// smaller kind.
typedef float Floats __attribute__((vector_size(64)));
typedef int Ints __attribute__((vector_size(64)));
typedef uint8_t Bytes __attribute__((vector_size(16)));

// 2 x 2 pixels of 16 channels. Comparisons of vectors give masks, which choose lane by lane.
struct Window2x2 {
  size_t row, column;

  DTRUN_KERNEL_PART void Pool(const float* x, bool relu, float* y, uint8_t* winners) const {
    Floats pixel[4];
    const float* const at[4] = {x, x + column, x + row, x + row + column};
    for (int p = 0; p < 4; ++p) std::memcpy(&pixel[p], at[p], sizeof(Floats));
    const Ints right01 = pixel[1] > pixel[0], right23 = pixel[3] > pixel[2];
    const Floats best01 = right01 ? pixel[1] : pixel[0], best23 = right23 ? pixel[3] : pixel[2];
    const Ints lower = best23 > best01;
    const Floats best = lower ? best23 : best01;
    // A true mask is -1 in every lane.
    Ints winner = lower ? 2 - right23 : -right01;
    if (relu) winner = best > 0.0f ? winner : Ints{} + int{kPoolNone};
    const Bytes bytes = __builtin_convertvector(winner, Bytes);
    std::memcpy(y, &best, sizeof best);
    std::memcpy(winners, &bytes, sizeof bytes);
  }

  DTRUN_KERNEL_PART void Unpool(const float* dy, const uint8_t* winners, float* dx) const {
    Floats value;
    Bytes bytes;
    std::memcpy(&value, dy, sizeof value);
    std::memcpy(&bytes, winners, sizeof bytes);
    const Ints winner = __builtin_convertvector(bytes, Ints);
    float* const at[4] = {dx, dx + column, dx + row, dx + row + column};
    for (int p = 0; p < 4; ++p) {
      const Floats part = winner == p ? value : Floats{};
      std::memcpy(at[p], &part, sizeof part);
    }
  }
};

}  // namespace

DTRUN_KERNEL void PoolForward(
    const Tensor& from, const Tensor& to, int window, const float* input, float* output,
    uint8_t* winners) {
  const int length = RunLength(from, to);
  const size_t column = size_t(from.block), row = size_t(from.shape.width) * column;
  if (window == 2 && length == 16) {
    const Window2x2 kernel{row, column};
    ForEachRun(from, to, 2, 16, [=, &from](const Run& run) {
      kernel.Pool(input + run.input, from.relu, output + run.output, winners + run.output);
    });
  } else {
    const AnyWindow kernel{window, length, row, column};
    ForEachRun(from, to, window, length, [=, &from](const Run& run) {
      kernel.Pool(input + run.input, from.relu, output + run.output, winners + run.output);
    });
  }
}

DTRUN_KERNEL void PoolBackward(
    const Tensor& from, const Tensor& to, int window, const float* output_gradient,
    const uint8_t* winners, float* input_gradient) {
  const bool covered = from.shape.height % window == 0 && from.shape.width % window == 0;
  if (!covered) std::memset(input_gradient, 0, from.stride() * sizeof(float));
  const int length = RunLength(from, to);
  const size_t column = size_t(from.block), row = size_t(from.shape.width) * column;
  if (window == 2 && length == 16) {
    const Window2x2 kernel{row, column};
    ForEachRun(from, to, 2, 16, [=](const Run& run) {
      kernel.Unpool(output_gradient + run.output, winners + run.output, input_gradient + run.input);
    });
  } else {
    const AnyWindow kernel{window, length, row, column};
    ForEachRun(from, to, window, length, [=](const Run& run) {
      kernel.Unpool(output_gradient + run.output, winners + run.output, input_gradient + run.input);
    });
  }
}

}  // namespace dtrun::models
