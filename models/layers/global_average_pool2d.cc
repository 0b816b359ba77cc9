#include "models/layers/global_average_pool2d.h"

#include <algorithm>

#include "models/layers/builder.h"
#include "models/layers/for_each_example.h"

namespace dtrun::models {
namespace {

// The channels of one group, summed pixel by pixel.
void MeanOf(const float* x, size_t pixels, size_t block, size_t channels, float* mean) {
  std::fill_n(mean, channels, 0.0f);
  for (size_t p = 0; p < pixels; ++p, x += block) {
    for (size_t c = 0; c < channels; ++c) mean[c] += x[c];
  }
  for (size_t c = 0; c < channels; ++c) mean[c] /= static_cast<float>(pixels);
}

// The channels that fill up a group get 0.
void SpreadOver(
    const float* data, bool relu, size_t pixels, size_t block, size_t channels, const float* mean,
    float* gradient) {
  const float share = 1 / static_cast<float>(pixels);
  for (size_t p = 0; p < pixels; ++p, data += block, gradient += block) {
    for (size_t c = 0; c < channels; ++c) gradient[c] = !relu || data[c] > 0 ? mean[c] * share : 0;
    std::fill(gradient + channels, gradient + block, 0.0f);
  }
}

// body(offset of the group in the example, its first channel, its channels)
template <typename Body>
void ForEachGroup(const Tensor& tensor, const Body& body) {
  const auto channels = size_t(tensor.shape.channels), block = size_t(tensor.block);
  for (size_t c = 0; c < channels; c += block)
    body(c * tensor.shape.pixels(), c, std::min(block, channels - c));
}

}  // namespace

Tensor* GlobalAveragePool2D::BuildForward(Builder& builder, Tensor* input) {
  batch_ = builder.batch();
  input_ = input;
  output_ = builder.NewTensor(OutputShape(input->shape), input->shape.channels, false);
  return output_;
}

void GlobalAveragePool2D::BuildBackward(Builder& builder, bool input_gradient) {
  if (input_gradient) builder.GiveGradient(input_);
}

void GlobalAveragePool2D::Forward(const Pass&) {
  const Tensor &x = *input_, &y = *output_;
  ForEachExample(batch_, [&](size_t i) {
    ForEachGroup(x, [&](size_t at, size_t c, size_t channels) {
      MeanOf(
          x.data + i * x.stride() + at, x.shape.pixels(), size_t(x.block), channels,
          y.data + i * y.stride() + c);
    });
  });
}

void GlobalAveragePool2D::BackwardData(const Pass&) {
  const Tensor &x = *input_, &y = *output_;
  ForEachExample(batch_, [&](size_t i) {
    ForEachGroup(x, [&](size_t at, size_t c, size_t channels) {
      const size_t from = i * x.stride() + at;
      SpreadOver(
          x.data + from, x.relu, x.shape.pixels(), size_t(x.block), channels,
          y.gradient + i * y.stride() + c, x.gradient + from);
    });
  });
}

}  // namespace dtrun::models
