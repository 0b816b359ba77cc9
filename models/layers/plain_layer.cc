#include "models/layers/plain_layer.h"

#include <algorithm>
#include <cstring>

#include "models/layers/builder.h"
#include "models/layers/kernels.h"

namespace dtrun::models {

Tensor* PlainLayer::BuildForward(Builder& builder, Tensor* input) {
  const Shape shape = OutputShape(input->shape);
  inputs_ = input->shape.count();
  outputs_ = shape.count();
  batch_ = size_t(builder.batch());
  input_ = input;
  output_ = builder.NewTensor(shape, shape.channels, false);
  parameters_ = builder.parameters;
  parameter_count_ = ParameterSpecs(input->shape).size();
  return output_;
}

void PlainLayer::BuildBackward(Builder& builder, bool input_gradient) {
  input_gradient_ = input_gradient;
  if (input_gradient) builder.GiveGradient(input_);
}

const float* PlainLayer::value(size_t i) const {
  return static_cast<const float*>(parameters_[i].value.data);
}

float* PlainLayer::gradient(size_t i) const {
  return static_cast<float*>(parameters_[i].gradient.data);
}

void PlainLayer::Forward(const Pass& pass) { Compute(pass, input_->data, output_->data); }

// One call of ComputeGradients makes both kinds of gradients: where there are parameters here, else
// in BackwardData.
void PlainLayer::BackwardWeights(const Pass& pass) {
  for (size_t i = 0; pass.first && i < parameter_count_; ++i)
    std::memset(parameters_[i].gradient.data, 0, parameters_[i].gradient.bytes());
  GoBack(pass);
}

void PlainLayer::BackwardData(const Pass& pass) {
  if (parameter_count_ == 0) GoBack(pass);
}

// The layer before takes the whole chunk, so that examples which do not count get zeros.
void PlainLayer::GoBack(const Pass& pass) {
  float* gradient = input_gradient_ ? input_->gradient : nullptr;
  ComputeGradients(pass, input_->data, output_->gradient, gradient);
  if (gradient == nullptr) return;
  const size_t count = size_t(pass.examples) * inputs_;
  if (input_->relu) MaskByRelu(input_->data, count, gradient);
  std::fill(gradient + count, gradient + batch_ * inputs_, 0.0f);
}

}  // namespace dtrun::models
