#include "models/layers/activations.h"

#include <dtrun/error.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "models/layers/builder.h"
#include "models/layers/cpu_kernels.h"
#include "models/layers/layer.h"
#include "models/layers/layer_plumbing.h"
#include "models/layers/network_graph.h"
#include "models/message_text.h"

namespace dtrun::models {

size_t Relu::Describe(NetworkGraph& graph, size_t input) const {
  return graph.AddActivation(input, Activation::kRelu);
}

// The tensor has a ReLU from now on. The layer that writes its gradient applies the ReLU.
Tensor* Relu::BuildForward(Builder& builder, Tensor* input) {
  batch_ = builder.batch();
  tensor_ = input;
  tensor_->relu = true;
  return tensor_;
}

void Relu::Forward(const Pass&) {
  const size_t stride = tensor_->stride();
  ForEachExample(batch_, [&](size_t i) { ApplyRelu(stride, tensor_->data + i * stride); });
}

size_t Softmax::Describe(NetworkGraph& graph, size_t input) const {
  return graph.Add({.kind = OperationKind::kSoftmax, .inputs = {input}}, graph.shapes()[input]);
}

namespace {

// Subtracts the largest value from all exponents, so that no exponential overflows.
void SoftmaxOf(const float* x, size_t channels, float* y) {
  const float largest = *std::max_element(x, x + channels);
  float sum = 0;
  for (size_t k = 0; k < channels; ++k) sum += y[k] = std::exp(x[k] - largest);
  for (size_t k = 0; k < channels; ++k) y[k] /= sum;
}

}  // namespace

void Softmax::Compute(const Pass& pass, const float* x, float* y) {
  const auto channels = size_t(input_shape().channels);
  const size_t count = size_t(pass.examples) * inputs();
  for (size_t i = 0; i < count; i += channels) SoftmaxOf(x + i, channels, y + i);
}

// dx(k) = y(k) * (dy(k) - sum over j of dy(j) * y(j)). Computes the probabilities y again, because
// another layer may have overwritten the output.
void Softmax::ComputeGradients(
    const Pass& pass, const float* x, const float* y_gradient, float* x_gradient) {
  if (x_gradient == nullptr) return;
  const auto channels = size_t(input_shape().channels);
  const size_t count = size_t(pass.examples) * inputs();
  for (size_t i = 0; i < count; i += channels) {
    float *y = x_gradient + i, dot = 0;
    SoftmaxOf(x + i, channels, y);
    for (size_t k = 0; k < channels; ++k) dot += y_gradient[i + k] * y[k];
    for (size_t k = 0; k < channels; ++k) x_gradient[i + k] = y[k] * (y_gradient[i + k] - dot);
  }
}

namespace {

// The mask uses 16 random bits per element.
constexpr size_t kElementsPerGroup = 2 * kPhiloxGroupWords;
constexpr double kSteps = 65536;

}  // namespace

Dropout::Dropout(double rate) : rate_(rate) {}

std::string Dropout::description() const { return Text("dropout ", rate_); }

LayerSettings Dropout::settings() const { return LayerSettings().Set("rate", rate_); }

Shape Dropout::OutputShape(const Shape& input) const {
  if (!(rate_ >= 0 && rate_ <= 1 - 1 / kSteps)) {
    throw Error(
        ErrorCode::kInvalidArgument, Text("needs a rate of at least 0 and below 1, got ", rate_));
  }
  return input;
}

uint32_t Dropout::keep_below() const {
  return static_cast<uint32_t>(std::lround((1 - rate_) * kSteps));
}

size_t Dropout::Describe(NetworkGraph& graph, size_t input) const {
  const DropoutDraws draws{
      keep_below(), static_cast<float>(kSteps / keep_below()), KeyOfSeed(graph.seed()),
      RandomDomain(RandomUse::kDropout, graph.layer_index)};
  return graph.Add(
      {.kind = OperationKind::kDropout, .inputs = {input}, .draws = draws}, graph.shapes()[input]);
}

Tensor* Dropout::BuildForward(Builder& builder, Tensor* input) {
  keep_below_ = keep_below();
  scale_ = static_cast<float>(kSteps / keep_below_);
  batch_ = builder.batch();
  key_ = KeyOfSeed(builder.seed());
  domain_ = RandomDomain(RandomUse::kDropout, builder.layer_index);
  tensor_ = input;
  mask_stride_ =
      (input->shape.count() + kElementsPerGroup - 1) / kElementsPerGroup * kElementsPerGroup;
  keep_ = builder.NewMemo(size_t(batch_) * mask_stride_);
  return input;
}

void Dropout::Forward(const Pass& pass) {
  if (!pass.training) return;
  ForEachExample(batch_, [&](size_t i) {
    MakeMask(pass, i);
    ApplyTo(tensor_->data, i);
  });
}

void Dropout::BackwardData(const Pass&) {
  ForEachExample(batch_, [&](size_t i) { ApplyTo(tensor_->gradient, i); });
}

// Applies the mask to the values of one example.
void Dropout::ApplyTo(float* values, size_t example) const {
  const size_t at = example * tensor_->stride();
  if (tensor_->dtype == DType::kBF16) {
    Apply(example, As<Bf16>(values) + at);
  } else {
    Apply(example, values + at);
  }
}

void Dropout::MakeMask(const Pass& pass, size_t example) {
  uint8_t* keep = keep_->data + example * mask_stride_;
  PhiloxCounter counter{
      0, pass.first_example + static_cast<uint32_t>(example), static_cast<uint32_t>(pass.step),
      domain_};
  constexpr size_t kGroups = 8;
  alignas(64) uint32_t words[kGroups * kPhiloxGroupWords];
  for (size_t left = mask_stride_ / kElementsPerGroup; left > 0;) {
    const size_t groups = std::min(left, kGroups);
    PhiloxGroups(counter, key_, groups, words);
    KeepBelow(words, groups, keep_below_, keep);
    counter[0] += static_cast<uint32_t>(groups * kPhiloxLanes);
    keep += groups * kElementsPerGroup;
    left -= groups;
  }
}

// The mask is in the plain format. If the tensor has another format, the loop takes its channels
// group by group.
template <typename Value>
void Dropout::Apply(size_t example, Value* values) const {
  const uint8_t* keep = keep_->data + example * mask_stride_;
  if (tensor_->plain()) return ScaleKept(keep, tensor_->shape.count(), scale_, values);
  const auto channels = size_t(tensor_->shape.channels), block = size_t(tensor_->block);
  for (size_t c = 0; c < channels; c += block) {
    const size_t count = std::min(block, channels - c);
    for (size_t pixel = 0; pixel < tensor_->shape.pixels(); ++pixel, values += block)
      ScaleKept(keep + pixel * channels + c, count, scale_, values);
  }
}

std::string Reshape::description() const {
  return Text("reshape ", shape_->height, "x", shape_->width, "x", shape_->channels);
}

LayerSettings Reshape::settings() const {
  if (!shape_) return {};
  return LayerSettings()
      .Set("height", shape_->height)
      .Set("width", shape_->width)
      .Set("channels", shape_->channels);
}

Shape Reshape::OutputShape(const Shape& input) const {
  const auto count = static_cast<int>(input.count());
  if (!shape_) return {1, 1, count};
  if (shape_->height < 1 || shape_->width < 1 || shape_->channels < 1)
    throw Error(ErrorCode::kInvalidArgument, "needs a shape of positive numbers");
  if (shape_->count() != input.count()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "needs an input of ", shape_->count(), " values, got ", ToString(input), " = ", count));
  }
  return *shape_;
}

size_t Reshape::Describe(NetworkGraph& graph, size_t input) const {
  return graph.Add(
      {.kind = OperationKind::kReshape, .inputs = {input}}, OutputShape(graph.shapes()[input]));
}

Tensor* Reshape::BuildForward(Builder& builder, Tensor* input) {
  input_ = input;
  output_ = builder.NewView(*input, OutputShape(input->shape));
  count_ = size_t(builder.batch()) * input->shape.count();
  return output_;
}

// The output has the ReLU of the input. The layer that wrote the gradient has applied the ReLU.
void Reshape::BuildBackward(Builder& builder, bool input_gradient) {
  if (input_gradient && input_->gradient == nullptr) builder.PutGradient(input_, output_->gradient);
}

// If the input has separate memory for its gradient, this layer is the first layer of a path.
void Reshape::BackwardData(const Pass&) {
  if (input_->gradient != output_->gradient)
    std::memcpy(input_->gradient, output_->gradient, count_ * sizeof(float));
}

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

// One call of ComputeGradients computes both kinds of gradients. BackwardWeights calls it if the
// layer has parameters, otherwise BackwardData calls it.
void PlainLayer::BackwardWeights(const Pass& pass) {
  for (size_t i = 0; pass.first && i < parameter_count_; ++i)
    std::memset(parameters_[i].gradient.data, 0, parameters_[i].gradient.bytes());
  GoBack(pass);
}

void PlainLayer::BackwardData(const Pass& pass) {
  if (parameter_count_ == 0) GoBack(pass);
}

// The layer before reads the gradients of the whole chunk: examples from pass.examples on get
// zeros.
void PlainLayer::GoBack(const Pass& pass) {
  float* gradient = input_gradient_ ? input_->gradient : nullptr;
  ComputeGradients(pass, input_->data, output_->gradient, gradient);
  if (gradient == nullptr) return;
  const size_t count = size_t(pass.examples) * inputs_;
  if (input_->relu) MaskByRelu(input_->data, count, gradient);
  std::fill(gradient + count, gradient + batch_ * inputs_, 0.0f);
}

namespace {

// Subtracts the largest logit from all exponents, so that no exponential overflows.
Tally AddExample(const float* logits, uint8_t label, size_t classes) {
  const float* largest = std::max_element(logits, logits + classes);
  double sum = 0;
  for (size_t k = 0; k < classes; ++k) sum += std::exp(logits[k] - *largest);
  return {std::log(sum) + double{*largest} - double{logits[label]}, largest == logits + label, 1};
}

void WriteGradient(
    const float* logits, uint8_t label, size_t classes, float scale, float* gradient) {
  const float largest = *std::max_element(logits, logits + classes);
  float sum = 0;
  for (size_t k = 0; k < classes; ++k) sum += gradient[k] = std::exp(logits[k] - largest);
  for (size_t k = 0; k < classes; ++k)
    gradient[k] = scale * (gradient[k] / sum - (k == label ? 1.0f : 0.0f));
}

}  // namespace

Tally& Tally::operator+=(const Tally& other) {
  loss += other.loss;
  correct += other.correct;
  examples += other.examples;
  return *this;
}

Tally SoftmaxCrossEntropy(
    const float* logits, const uint8_t* labels, size_t examples, size_t classes) {
  Tally tally;
  for (size_t i = 0; i < examples; ++i)
    tally += AddExample(logits + i * classes, labels[i], classes);
  return tally;
}

Tally SoftmaxCrossEntropy(
    const float* logits, const uint8_t* labels, size_t examples, size_t classes, float scale,
    float* gradient) {
  for (size_t i = 0; i < examples; ++i)
    WriteGradient(logits + i * classes, labels[i], classes, scale, gradient + i * classes);
  return SoftmaxCrossEntropy(logits, labels, examples, classes);
}

}  // namespace dtrun::models
