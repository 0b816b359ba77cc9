// A vector holds eight filters. The inner loop takes a row of the output, a row i of the kernel and
// an input channel c. The sums of all columns j of the kernel stay in registers:
//
//   for each pixel w of the row:  sum[j] += gradient(w) * input(s * w + j)     j = 0 .. size - 1
//
// Each value of the gradient is loaded once per (i, c). After the first load, it comes from the
// first-level cache. The examples are divided into a fixed number of parts. Each task of a thread
// is one part of one group of filters. Write adds the sums of the parts in their order.

#include <algorithm>
#include <cstring>

#include "models/function_clones.h"
#include "models/layers/cpu_kernels.h"

namespace dtrun::models {
namespace {

constexpr size_t kLanes = 8;
constexpr int kParts = 4, kLargestSize = 7, kMostChannels = 4;

// Eight floats at any address.
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

DTRUN_KERNEL_PART const Lanes& At(const float* values) {
  return *reinterpret_cast<const Lanes*>(values);
}
DTRUN_KERNEL_PART Lanes& At(float* values) { return *reinterpret_cast<Lanes*>(values); }

// A row of the output, with a row and a channel of the input.
struct Row {
  const float* input;  // the channel of the first pixel
  int width, channels, stride, before;
  const float* gradient;
  size_t pixel;  // floats from one pixel of the gradient to the next
  int outputs;
  float* sums;  // (size, lanes)
};

// Adds a pixel if its window reaches over an edge of the input.
template <int kSize>
DTRUN_KERNEL_PART void AddEdge(const Row& row, int w, Lanes (&sums)[kSize]) {
  const Lanes gradient = At(row.gradient + size_t(w) * row.pixel);
  for (int j = 0; j < kSize; ++j) {
    const int column = w * row.stride + j - row.before;
    if (column >= 0 && column < row.width) sums[j] += gradient * row.input[column * row.channels];
  }
}

template <int kSize>
DTRUN_KERNEL_PART void AddRowOf(const Row& row) {
  Lanes sums[kSize];
  for (int j = 0; j < kSize; ++j) sums[j] = At(row.sums + size_t(j) * kLanes);
  const int first = std::min((row.before + row.stride - 1) / row.stride, row.outputs);
  const int room = row.width - kSize + row.before;  // start of the last window that fits
  const int end = room < 0 ? first : std::clamp(room / row.stride + 1, first, row.outputs);
  for (int w = 0; w < first; ++w) AddEdge<kSize>(row, w, sums);
  for (int w = first; w < end; ++w) {
    const Lanes gradient = At(row.gradient + size_t(w) * row.pixel);
    const float* window = row.input + (w * row.stride - row.before) * row.channels;
    for (int j = 0; j < kSize; ++j) sums[j] += gradient * window[j * row.channels];
  }
  for (int w = end; w < row.outputs; ++w) AddEdge<kSize>(row, w, sums);
  for (int j = 0; j < kSize; ++j) At(row.sums + size_t(j) * kLanes) = sums[j];
}

DTRUN_KERNEL void AddRow(int size, const Row& row) {
  switch (size) {
    case 1: return AddRowOf<1>(row);
    case 2: return AddRowOf<2>(row);
    case 3: return AddRowOf<3>(row);
    case 4: return AddRowOf<4>(row);
    case 5: return AddRowOf<5>(row);
    case 6: return AddRowOf<6>(row);
    case 7: return AddRowOf<7>(row);
  }
}

DTRUN_KERNEL void AddPixels(const float* gradient, size_t pixels, size_t pixel, float* sums) {
  Lanes sum = At(sums);
  for (size_t i = 0; i < pixels; ++i) sum += At(gradient + i * pixel);
  At(sums) = sum;
}

}  // namespace

bool CanComputeWeightGradient(int input_channels, int size, int output_block) {
  return input_channels <= kMostChannels && size <= kLargestSize &&
         static_cast<size_t>(output_block) % kLanes == 0;
}

WeightGradient::WeightGradient(
    const Shape& input, const Shape& output, int size, int stride, int before_rows,
    int before_columns, int output_block)
    : input_(input),
      output_(output),
      size_(size),
      stride_(stride),
      before_rows_(before_rows),
      before_columns_(before_columns),
      block_(output_block),
      groups_((size_t(output.channels) + kLanes - 1) / kLanes),
      sums_(size_t(kParts) * groups_ * SumsOfGroup()) {}

size_t WeightGradient::SumsOfGroup() const {
  return size_t(size_ * size_ * input_.channels + 1) * kLanes;
}

void WeightGradient::Add(const float* input, const float* gradient, int examples, bool first) {
  if (first) std::memset(sums_.data(), 0, sums_.count() * sizeof(float));
  const size_t blocks = (size_t(output_.channels) + size_t(block_) - 1) / size_t(block_);
  const size_t from = input_.count(), to = output_.pixels() * blocks * size_t(block_);
  const int tasks = kParts * static_cast<int>(groups_);
#pragma omp parallel for schedule(static)
  for (int task = 0; task < tasks; ++task) {
    const int part = task / static_cast<int>(groups_);
    const size_t group = size_t(task) % groups_;
    const int begin = examples * part / kParts, end = examples * (part + 1) / kParts;
    float* sums = sums_.data() + size_t(task) * SumsOfGroup();
    AddPart(input + size_t(begin) * from, gradient + size_t(begin) * to, end - begin, group, sums);
  }
}

// Adds the examples of one part to the sums of one group of filters.
void WeightGradient::AddPart(
    const float* input, const float* gradient, int examples, size_t group, float* sums) {
  const size_t block = size_t(block_), channel = group * kLanes;
  const size_t blocks = (size_t(output_.channels) + block - 1) / block;
  const size_t offset = channel / block * output_.pixels() * block + channel % block;
  float* bias = sums + SumsOfGroup() - kLanes;
  for (int n = 0; n < examples; ++n) {
    const float* image = input + size_t(n) * input_.count();
    const float* slopes = gradient + size_t(n) * output_.pixels() * blocks * block + offset;
    AddPixels(slopes, output_.pixels(), block, bias);
    for (int h = 0; h < output_.height; ++h) {
      for (int i = 0; i < size_; ++i) {
        const int row = h * stride_ + i - before_rows_;
        if (row < 0 || row >= input_.height) continue;
        for (int c = 0; c < input_.channels; ++c) {
          AddRow(
              size_, {.input = image + (row * input_.width) * input_.channels + c,
                      .width = input_.width,
                      .channels = input_.channels,
                      .stride = stride_,
                      .before = before_columns_,
                      .gradient = slopes + size_t(h * output_.width) * block,
                      .pixel = block,
                      .outputs = output_.width,
                      .sums = sums + size_t((i * input_.channels + c) * size_) * kLanes});
        }
      }
    }
  }
}

void WeightGradient::Write(float* kernel, float* bias) const {
  const auto sum_of = [&](size_t filter, size_t index) {
    float sum = 0;
    for (size_t part = 0; part < kParts; ++part) {
      const size_t task = part * groups_ + filter / kLanes;
      sum += sums_.data()[task * SumsOfGroup() + index * kLanes + filter % kLanes];
    }
    return sum;
  };
  const auto filters = size_t(output_.channels), channels = size_t(input_.channels);
  const auto size = size_t(size_);
  for (size_t i = 0; i < size; ++i)
    for (size_t j = 0; j < size; ++j)
      for (size_t c = 0; c < channels; ++c)
        for (size_t f = 0; f < filters; ++f)
          kernel[((i * size + j) * channels + c) * filters + f] =
              sum_of(f, (i * channels + c) * size + j);
  if (bias == nullptr) return;
  for (size_t f = 0; f < filters; ++f) bias[f] = sum_of(f, size * size * channels);
}

}  // namespace dtrun::models
