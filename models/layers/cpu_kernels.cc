#include "models/layers/cpu_kernels.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "models/function_clones.h"
#include "models/layers/tensor.h"

// Only inlined functions return vectors.
#pragma GCC diagnostic ignored "-Wpsabi"

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

// The bits of a positive float are a positive integer. The bits of -0 and of NaNs with a sign are
// negative.
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
  // Without a ReLU, the bound is so low that it changes no value.
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

// Tiles fit the first-level cache in both matrices.
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

// A product that is NaN keeps its upper bits when it is rounded. Therefore it stays NaN.
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

DTRUN_KERNEL void AddTwo(const float* a, const float* b, size_t count, bool relu, float* y) {
  // Without a ReLU, the bound is so low that it changes no value.
  const float least = relu ? 0.0f : -__builtin_inff();
  for (size_t i = 0; i < count; ++i) {
    const float value = a[i] + b[i];
    y[i] = value < least ? least : value;
  }
}

DTRUN_KERNEL void AddMasked(
    const float* __restrict more, const float* __restrict data, size_t count,
    float* __restrict gradient) {
  if (data == nullptr) {
    for (size_t i = 0; i < count; ++i) gradient[i] += more[i];
    return;
  }
  for (size_t i = 0; i < count; ++i) gradient[i] = data[i] > 0 ? gradient[i] + more[i] : 0;
}

// Slow, channel by channel: used only for shapes without a common oneDNN format.
void ConvertFormat(const Tensor& from, const float* x, const Tensor& to, float* y) {
  const auto channels = size_t(to.shape.channels), pixels = to.shape.pixels();
  const auto from_block = size_t(from.block), to_block = size_t(to.block);
  std::fill_n(y, to.stride(), 0.0f);
  for (size_t c = 0; c < channels; ++c) {
    const float* in = x + c / from_block * pixels * from_block + c % from_block;
    float* out = y + c / to_block * pixels * to_block + c % to_block;
    for (size_t p = 0; p < pixels; ++p) out[p * to_block] = in[p * from_block];
  }
}

namespace {

// Sums this many pixels in f32 before it adds to f64. This is fast, and the error is a few units in
// the last place of a float.
constexpr size_t kPixels = 32;

// Calls body(first channel, constant number of channels) for all channels of a group: 16 at a time,
// then 8, then single channels. The compiler makes vectors only for a constant number.
template <typename Body>
DTRUN_KERNEL_PART void ForEachVector(size_t channels, const Body& body) {
  size_t c = 0;
  for (; c + 16 <= channels; c += 16) body(c, std::integral_constant<size_t, 16>());
  for (; c + 8 <= channels; c += 8) body(c, std::integral_constant<size_t, 8>());
  for (; c < channels; ++c) body(c, std::integral_constant<size_t, 1>());
}

// A vector of channels. The kernels use vector types, because GCC 12 does not vectorise loops with
// a selection.
template <size_t kLanes>
struct VectorOf {
  typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
};
template <size_t kLanes>
using Vector = typename VectorOf<kLanes>::Floats;

template <size_t kLanes>
DTRUN_KERNEL_PART Vector<kLanes> Load(const float* from) {
  Vector<kLanes> values;
  std::memcpy(&values, from, sizeof values);
  return values;
}

template <size_t kLanes>
DTRUN_KERNEL_PART void AddTo(const Vector<kLanes>& terms, double* sums) {
  for (size_t c = 0; c < kLanes; ++c) sums[c] += double{terms[c]};
}

// The linear functions of a vector of channels, and dy after the backward pass of a ReLU behind
// them.
template <size_t kLanes>
struct LineOf {
  Vector<kLanes> scale, offset;

  DTRUN_KERNEL_PART LineOf(const ChannelLines& lines, size_t c)
      : scale(Load<kLanes>(lines.scale + c)), offset(Load<kLanes>(lines.offset + c)) {}
  DTRUN_KERNEL_PART Vector<kLanes> At(const Vector<kLanes>& x) const { return scale * x + offset; }
  DTRUN_KERNEL_PART Vector<kLanes> Passed(const Vector<kLanes>& x, const Vector<kLanes>& dy) const {
    return At(x) > 0.0f ? dy : Vector<kLanes>{};
  }
};

template <size_t kLanes>
DTRUN_KERNEL_PART void SumLanes(
    const float* x, const ChannelGroup& group, const float* center, double* sums, double* squares) {
  const auto from = Load<kLanes>(center);
  for (size_t p = 0; p < group.pixels; p += kPixels) {
    const size_t end = std::min(p + kPixels, group.pixels);
    Vector<kLanes> sum = {}, square = {};
    for (size_t q = p; q < end; ++q) {
      const Vector<kLanes> value = Load<kLanes>(x + q * group.block) - from;
      sum += value;
      square += value * value;
    }
    AddTo<kLanes>(sum, sums);
    AddTo<kLanes>(square, squares);
  }
}

template <size_t kLanes, typename Pass>
DTRUN_KERNEL_PART void SumGradientLanes(
    const float* x, const float* dy, const ChannelGroup& group, const float* center,
    const Pass& passed, double* sums, double* products) {
  const auto from = Load<kLanes>(center);
  for (size_t p = 0; p < group.pixels; p += kPixels) {
    const size_t end = std::min(p + kPixels, group.pixels);
    Vector<kLanes> sum = {}, product = {};
    for (size_t q = p; q < end; ++q) {
      const auto value = Load<kLanes>(x + q * group.block);
      const Vector<kLanes> gradient = passed(value, Load<kLanes>(dy + q * group.block));
      sum += gradient;
      product += gradient * (value - from);
    }
    AddTo<kLanes>(sum, sums);
    AddTo<kLanes>(product, products);
  }
}

template <size_t kLanes, bool kAdds>
DTRUN_KERNEL_PART void ScaleLanes(
    const float* x, const ChannelGroup& group, const LineOf<kLanes>& line, const float* term,
    float least, float* y) {
  for (size_t p = 0; p < group.pixels; ++p) {
    const size_t at = p * group.block;
    Vector<kLanes> value = line.At(Load<kLanes>(x + at));
    if constexpr (kAdds) value += Load<kLanes>(term + at);
    value = value < least ? least - Vector<kLanes>{} : value;
    std::memcpy(y + at, &value, sizeof value);
  }
}

// Reads each vector before it writes the result, so dx may be x.
template <size_t kLanes, typename Pass>
DTRUN_KERNEL_PART void CombineLanes(
    const float* x, const float* dy, const ChannelGroup& group, const float* a,
    const LineOf<kLanes>& line, const Pass& passed, float least, float* dx) {
  const auto factor = Load<kLanes>(a);
  for (size_t p = 0; p < group.pixels; ++p) {
    const size_t at = p * group.block;
    const auto value = Load<kLanes>(x + at);
    Vector<kLanes> result = factor * passed(value, Load<kLanes>(dy + at)) + line.At(value);
    result = value > least ? result : Vector<kLanes>{};
    std::memcpy(dx + at, &result, sizeof result);
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

DTRUN_KERNEL void ScaleChannels(
    const float* x, const ChannelGroup& group, const ChannelLines& line, const float* term,
    bool relu, float* y) {
  // Without a ReLU, the bound is so low that it changes no value.
  const float least = relu ? 0.0f : -__builtin_inff();
  ForEachVector(
      group.block, [&](size_t c, auto lanes) __attribute__((always_inline)) {
        const LineOf<lanes()> of_lanes(line, c);
        if (term != nullptr) {
          ScaleLanes<lanes(), true>(x + c, group, of_lanes, term + c, least, y + c);
        } else {
          ScaleLanes<lanes(), false>(x + c, group, of_lanes, nullptr, least, y + c);
        }
      });
}

DTRUN_KERNEL void GradientSums(
    const float* x, const float* dy, const ChannelGroup& group, const float* center,
    const ChannelLines* relu, double* sums, double* products) {
  std::fill_n(sums, group.block, 0.0);
  std::fill_n(products, group.block, 0.0);
  ForEachVector(
      group.block, [&](size_t c, auto lanes) __attribute__((always_inline)) {
        const auto sum = [&](const auto& passed) __attribute__((always_inline)) {
          SumGradientLanes<lanes()>(
              x + c, dy + c, group, center + c, passed, sums + c, products + c);
        };
        using V = Vector<lanes()>;
        if (relu == nullptr)
          return sum([](const V&, const V& gradient)
                         __attribute__((always_inline)) { return gradient; });
        const LineOf<lanes()> line(*relu, c);
        sum([&](const V& value, const V& gradient)
                __attribute__((always_inline)) { return line.Passed(value, gradient); });
      });
}

DTRUN_KERNEL void CombineGradients(
    const float* x, const float* dy, const ChannelGroup& group, const float* a,
    const ChannelLines& line, const ChannelLines* relu, bool mask, float* dx) {
  const float least = mask ? 0.0f : -__builtin_inff();
  ForEachVector(
      group.block, [&](size_t c, auto lanes) __attribute__((always_inline)) {
        const auto combine = [&](const auto& passed) __attribute__((always_inline)) {
          CombineLanes<lanes()>(
              x + c, dy + c, group, a + c, LineOf<lanes()>(line, c), passed, least, dx + c);
        };
        using V = Vector<lanes()>;
        if (relu == nullptr)
          return combine([](const V&, const V& gradient)
                             __attribute__((always_inline)) { return gradient; });
        const LineOf<lanes()> sign(*relu, c);
        combine([&](const V& value, const V& gradient)
                    __attribute__((always_inline)) { return sign.Passed(value, gradient); });
      });
}

std::string ToString(const Shape& shape) {
  if (shape.pixels() == 1) return std::to_string(shape.channels);
  return std::to_string(shape.height) + "x" + std::to_string(shape.width) + "x" +
         std::to_string(shape.channels);
}

FloatArray::FloatArray(size_t count) : count_(count) {
  constexpr size_t kAlignment = 4096;
  const size_t bytes = (count * sizeof(float) + kAlignment) / kAlignment * kAlignment;
  data_.reset(static_cast<float*>(std::aligned_alloc(kAlignment, bytes)));
  if (data_ == nullptr) throw std::bad_alloc();
  std::memset(data_.get(), 0, bytes);
}

}  // namespace dtrun::models
