#include "tests/models/layers/gradient_check.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "models/layers/activations.h"

namespace dtrun::testing {
namespace {

using models::Pass;

constexpr int kExamples = 5;

// Numbers in (-1, 1) without a pattern that a layer could miss.
double MadeUp(size_t i) { return std::sin(12.9898 * double(i + 1) + 78.233 * double(i * i % 97)); }

void PerturbParameters(models::Sequential& model) {
  size_t n = 0;
  for (const Parameter& parameter : model.parameters()) {
    auto* value = static_cast<float*>(parameter.value.data);
    for (size_t i = 0; i < parameter.value.count; ++i) value[i] += float(0.2 * MadeUp(n++));
  }
}

double LossOf(const Batch& outputs, const CheckedNetwork& network) {
  double sum = 0;
  for (size_t i = 0; i < outputs.size(); ++i)
    sum += CrossEntropy(outputs[i].values, network.label(i));
  return sum;
}

}  // namespace

CheckedNetwork::CheckedNetwork(
    const models::Shape& input, models::LayerList layers, int examples,
    const models::SequentialOptions& options)
    : model_(input, std::move(layers), options),
      gradient_memory_(model_.parameter_count()),
      examples_(examples) {
  float* gradient = gradient_memory_.data();
  for (Parameter& parameter : model_.parameters()) {
    parameter.gradient.data = gradient;
    gradient += parameter.gradient.count;
  }
  PerturbParameters(model_);
  for (int i = 0; i < examples; ++i) {
    Activations x{input, std::vector<double>(input.count())};
    for (size_t k = 0; k < x.values.size(); ++k)
      x.values[k] = double(float(MadeUp(size_t(i) * 1000 + k) + 0.3));
    inputs_.push_back(x);
  }
}

void CheckedNetwork::SetInputs(const std::function<void(int, float*)>& write) {
  std::vector<float> values(inputs_[0].values.size());
  for (int i = 0; i < examples_; ++i) {
    write(i, values.data());
    inputs_[size_t(i)].values.assign(values.begin(), values.end());
  }
}

// Fills the unused part of the chunk with values that would show in the results.
void CheckedNetwork::LoadInputs() {
  const size_t count = inputs_[0].values.size();
  std::fill_n(model_.input(), size_t(model_.chunk()) * count, 1000.0f);
  for (size_t i = 0; i < inputs_.size(); ++i)
    std::copy(inputs_[i].values.begin(), inputs_[i].values.end(), model_.input() + i * count);
}

void CheckedNetwork::Forward(bool training) {
  model_.PrepareWeights();
  LoadInputs();
  Pass pass;
  pass.training = training;
  model_.Forward(pass, examples_);
}

double CheckedNetwork::Train() {
  Forward(true);
  std::vector<uint8_t> labels;
  for (size_t i = 0; i < size_t(examples_); ++i) labels.push_back(uint8_t(label(i)));
  std::fill_n(model_.output_gradient(), size_t(model_.chunk()) * model_.classes(), 0.0f);
  const models::Tally tally = models::SoftmaxCrossEntropy(
      model_.output(), labels.data(), labels.size(), model_.classes(),
      1.0f / static_cast<float>(examples_), model_.output_gradient());
  Pass pass;
  pass.training = true;
  model_.Backward(pass, examples_, [](size_t) {});
  return tally.loss;
}

std::vector<double> CheckedNetwork::parameters() {
  std::vector<double> values;
  for (const Parameter& parameter : model_.parameters()) {
    const auto* value = static_cast<const float*>(parameter.value.data);
    values.insert(values.end(), value, value + parameter.value.count);
  }
  return values;
}

std::vector<double> CheckedNetwork::gradients() {
  return {gradient_memory_.data(), gradient_memory_.data() + gradient_memory_.count()};
}

std::vector<float> CheckedNetwork::outputs() {
  return {model_.output(), model_.output() + size_t(examples_) * model_.classes()};
}

void CheckGradients(
    const models::Shape& input, models::LayerList layers, const Reference& reference) {
  CheckedNetwork network(input, std::move(layers), kExamples, {2, 3, 7});
  INFO(network.model().description());
  std::vector<double> parameters = network.parameters();
  const auto loss = [&] {
    const double* parameter = parameters.data();
    const Batch outputs = reference(network.inputs(), parameter);
    REQUIRE(parameter == parameters.data() + parameters.size());
    return LossOf(outputs, network);
  };
  CHECK(network.Train() == Approx(loss()).epsilon(1e-5));
  const std::vector<double> gradients = network.gradients();

  const double h = 1e-5;
  double difference = 0, norm = 0;
  const size_t stride = parameters.size() <= 400 ? 1 : (parameters.size() / 200 | 1);
  for (size_t i = 0; i < parameters.size(); i += stride) {
    const double value = parameters[i];
    parameters[i] = value + h;
    const double above = loss();
    parameters[i] = value - h;
    const double below = loss();
    parameters[i] = value;
    const double expected = (above - below) / (2 * h) / kExamples;
    CHECK(gradients[i] == Approx(expected).epsilon(2e-3).margin(2e-6));
    difference += std::pow(gradients[i] - expected, 2);
    norm += expected * expected;
  }
  CHECK(norm > 0);
  CHECK(std::sqrt(difference / norm) < 3e-5);
}

}  // namespace dtrun::testing
