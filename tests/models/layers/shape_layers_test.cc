// Layers that reshape or pool an image or map its values one by one, and a user's own layers.

#include <catch2/catch.hpp>
#include <cmath>

#include "models/layers/activations.h"
#include "models/layers/conv2d.h"
#include "models/layers/dense.h"
#include "models/layers/layer.h"
#include "models/layers/pooling.h"
#include "tests/models/layers/gradient_check.h"

namespace dtrun::models {
namespace {

using dtrun::testing::Activations;
using dtrun::testing::Batch;
using dtrun::testing::CheckedNetwork;
using dtrun::testing::CheckGradients;
using dtrun::testing::Connect;
using dtrun::testing::Convolve;
using dtrun::testing::ForEach;
using dtrun::testing::MaxOfWindows;
using dtrun::testing::MeanOfPixels;
using dtrun::testing::MeanOfWindows;
using dtrun::testing::ReluOf;
using dtrun::testing::SoftmaxOfChannels;

// A 3 x 3 convolution before the checked function and a dense layer of 3 units after it.
template <typename Function>
dtrun::testing::Reference Between(int filters, bool relu, const Function& function) {
  return [=](const Batch& batch, const double*& parameter) {
    const double* const first = parameter;
    return ForEach(batch, [&](Activations x) {
      parameter = first;
      x = Convolve(x, filters, {3}, true, parameter);
      if (relu) x = ReluOf(x);
      return Connect(function(x), 3, parameter);
    });
  };
}

TEST_CASE("flattened and reshaped values and their gradients keep their order") {
  const auto reshaped = [](Activations x) {
    x.shape = {4, 2, 10};
    return x;
  };
  CheckGradients(
      {7, 6, 1}, Layers(Conv2D(4, 3), Reshape({4, 2, 10}), Dense(3)), Between(4, false, reshaped));
  CheckGradients(
      {7, 6, 1}, Layers(Conv2D(16, 3, Activation::kRelu), Flatten(), Dense(3)),
      Between(16, true, [](Activations x) { return x; }));
  // Before a convolution, as in a network for flat inputs.
  CheckGradients(
      {1, 1, 42}, Layers(Reshape({7, 6, 1}), Conv2D(5, 3), Dense(3)),
      [](const Batch& batch, const double*& parameter) {
        const double* const first = parameter;
        return ForEach(batch, [&](Activations x) {
          parameter = first;
          x.shape = {7, 6, 1};
          return Connect(Convolve(x, 5, {3}, true, parameter), 3, parameter);
        });
      });
}

TEST_CASE("a separate ReLU layer has the gradients of a fused ReLU even as the last layer") {
  CheckGradients(
      {7, 6, 1}, Layers(Conv2D(16, 3), Relu(), Dense(3)),
      Between(16, false, [](const Activations& x) { return ReluOf(x); }));
  CheckGradients(
      {2, 3, 1}, Layers(Dense(3), Relu()), [](const Batch& batch, const double*& parameter) {
        const double* const first = parameter;
        return ForEach(batch, [&](const Activations& x) {
          parameter = first;
          return ReluOf(Connect(x, 3, parameter));
        });
      });
}

TEST_CASE("softmax gradients over the channels of each pixel match float64 differences") {
  CheckGradients(
      {7, 6, 1}, Layers(Conv2D(6, 3), Softmax(), Dense(3)),
      Between(6, false, [](const Activations& x) { return SoftmaxOfChannels(x); }));
  CheckGradients(
      {7, 6, 1}, Layers(Conv2D(16, 3, Activation::kRelu), Softmax(), Dense(3)),
      Between(16, true, [](const Activations& x) { return SoftmaxOfChannels(x); }));
}

TEST_CASE("softmax makes probabilities of logits of any size") {
  CheckedNetwork network({1, 1, 3}, Layers(Dense(3), Softmax()), 4, {2, 2, 1});
  for (const Parameter& parameter : network.model().parameters()) {
    auto* value = static_cast<float*>(parameter.value.data);
    for (size_t i = 0; i < parameter.value.count; ++i) value[i] *= 1000;
  }
  network.Forward(false);
  const std::vector<float> p = network.outputs();
  for (size_t i = 0; i < p.size(); i += 3) CHECK(p[i] + p[i + 1] + p[i + 2] == Approx(1));
}

TEST_CASE("gradients of the global mean match float64 differences in every format") {
  for (int filters : {16, 20, 5}) {
    CheckGradients(
        {7, 6, 1}, Layers(Conv2D(filters, 3, Activation::kRelu), GlobalAveragePool2D(), Dense(3)),
        Between(filters, true, [](const Activations& x) { return MeanOfPixels(x); }));
  }
}

TEST_CASE("gradients of a first convolution match float64 differences for 1 to 5 channels") {
  const Window windows[] = {{3}, {2, 3}, {5, 1, Padding::Same()}, {7, 2, Padding::Pixels(3)}};
  for (int channels : {1, 2, 3, 4, 5}) {
    for (const Window& window : windows) {
      INFO(channels << " channels, " << ToString(window));
      const Conv2DOptions options = {.stride = window.stride, .padding = window.padding};
      CheckGradients(
          {9, 8, channels}, Layers(Conv2D(24, window.size, options), Dense(3)),
          [&](const Batch& batch, const double*& parameter) {
            const double* const first = parameter;
            return ForEach(batch, [&](const Activations& x) {
              parameter = first;
              return Connect(Convolve(x, 24, window, true, parameter), 3, parameter);
            });
          });
    }
  }
}

TEST_CASE("pooling gradients match float64 differences for any window and stride and padding") {
  const Window windows[] = {{2, 2}, {3, 2, Padding::Same()}, {3, 2, Padding::Pixels(1)},
                            {2, 1}, {3, 1, Padding::Same()}, {2, 3}};
  for (const Window& window : windows) {
    for (int filters : {16, 5}) {
      CheckGradients(
          {7, 8, 1}, Layers(Conv2D(filters, 3, Activation::kRelu), AveragePool2D(window), Dense(3)),
          Between(filters, true, [&](const Activations& x) { return MeanOfWindows(x, window); }));
      CheckGradients(
          {7, 8, 1}, Layers(Conv2D(filters, 3), MaxPool2D(window), Dense(3)),
          Between(filters, false, [&](const Activations& x) { return MaxOfWindows(x, window); }));
    }
  }
}

// A layer as a user writes it; see PlainLayer in layer.h.
class Swish : public PlainLayer {
 public:
  std::string kind() const override { return "swish"; }
  Shape OutputShape(const Shape& input) const override { return input; }

 protected:
  void Compute(const Pass& pass, const float* x, float* y) override {
    for (size_t i = 0; i < size_t(pass.examples) * inputs(); ++i)
      y[i] = x[i] / (1 + std::exp(-x[i]));
  }
  void ComputeGradients(
      const Pass& pass, const float* x, const float* y_gradient, float* x_gradient) override {
    for (size_t i = 0; x_gradient != nullptr && i < size_t(pass.examples) * inputs(); ++i) {
      const float s = 1 / (1 + std::exp(-x[i]));
      x_gradient[i] = y_gradient[i] * s * (1 + x[i] * (1 - s));
    }
  }
};

// A layer with a regularized parameter: y(h, w, c) = x(h, w, c) * scale(c).
class ScaleChannel : public PlainLayer {
 public:
  std::string kind() const override { return "scale_channel"; }
  Shape OutputShape(const Shape& input) const override { return input; }
  std::vector<ParameterSpec> ParameterSpecs(const Shape& input) const override {
    return {{.name = "scale", .shape = {input.channels}, .value = 1, .l2 = 0.01}};
  }

 protected:
  void Compute(const Pass& pass, const float* x, float* y) override {
    const auto channels = size_t(input_shape().channels);
    for (size_t i = 0; i < size_t(pass.examples) * inputs(); ++i)
      y[i] = x[i] * value(0)[i % channels];
  }
  void ComputeGradients(
      const Pass& pass, const float* x, const float* y_gradient, float* x_gradient) override {
    const auto channels = size_t(input_shape().channels);
    for (size_t i = 0; i < size_t(pass.examples) * inputs(); ++i) {
      gradient(0)[i % channels] += y_gradient[i] * x[i];
      if (x_gradient != nullptr) x_gradient[i] = y_gradient[i] * value(0)[i % channels];
    }
  }
};

Activations SwishOf(Activations x) {
  for (double& value : x.values) value /= 1 + std::exp(-value);
  return x;
}

TEST_CASE("a user's own layer works between built-in layers") {
  CheckGradients(
      {7, 6, 1}, Layers(Conv2D(16, 3), Swish(), Dense(3)),
      Between(16, false, [](const Activations& x) { return SwishOf(x); }));
  CheckGradients(
      {7, 6, 1},
      Layers(Swish(), Conv2D(4, 3, Activation::kRelu), Swish(), MaxPool2D(2), Swish(), Dense(3)),
      [](const Batch& batch, const double*& parameter) {
        const double* const first = parameter;
        return ForEach(batch, [&](Activations x) {
          parameter = first;
          x = SwishOf(ReluOf(Convolve(SwishOf(x), 4, {3}, true, parameter)));
          return Connect(SwishOf(MaxOfWindows(x, {2, 2})), 3, parameter);
        });
      });
}

TEST_CASE("a user's own layer may have parameters and be the first layer") {
  CheckedNetwork network({4, 3, 2}, Layers(ScaleChannel(), Dense(3)), 5, {2, 3, 7});
  CHECK(network.model().parameters()[0].name == "layer0.scale_channel.scale");
  // The network's gradient includes the regularizer. The loss below does not.
  const double l2_gradient = 2 * 0.01 * network.parameters()[1];
  CHECK(
      network.model().RegularizationLoss() ==
      Approx(0.01 * (std::pow(network.parameters()[0], 2) + std::pow(network.parameters()[1], 2))));
  network.Train();
  const double with = network.gradients()[1];
  const auto loss = [&](double change) {
    double sum = 0;
    const Batch inputs = network.inputs();
    for (size_t i = 0; i < inputs.size(); ++i) {
      std::vector<double> parameters = network.parameters();
      parameters[1] += change;
      Activations x = inputs[i];
      for (size_t k = 0; k < x.values.size(); ++k) x.values[k] *= parameters[k % 2];
      const double* parameter = parameters.data() + 2;
      sum += dtrun::testing::CrossEntropy(Connect(x, 3, parameter).values, network.label(i));
    }
    return sum / 5;
  };
  const double without = (loss(1e-5) - loss(-1e-5)) / 2e-5;
  CHECK(with == Approx(without + l2_gradient).epsilon(1e-4));
}

TEST_CASE("the regularization loss counts each regularized kernel once over all ranks") {
  CheckedNetwork network(
      {5, 5, 1},
      Layers(
          Conv2D(4, 3, {.kernel_l2 = 1e-2}), Conv2D(4, 3),
          Dense(3, DenseOptions{.kernel_l2 = 1e-3})),
      5, {2, 3, 7});
  double expected = 0;
  for (const auto& [parameter, l2] : {std::pair{0, 1e-2}, {4, 1e-3}}) {
    const Buffer& value = network.model().parameters()[size_t(parameter)].value;
    for (size_t i = 0; i < value.count; ++i)
      expected += l2 * std::pow(double(static_cast<const float*>(value.data)[i]), 2);
  }
  CHECK(network.model().RegularizationLoss() == Approx(expected));

  // A rank without examples also adds its part.
  Pass pass;
  pass.training = true;
  pass.regularization_scale = 0.5;
  std::vector<size_t> ready;
  network.model().ZeroGradients(pass, [&](size_t i) { ready.push_back(i); });
  CHECK(ready == std::vector<size_t>{5, 4, 3, 2, 1, 0});
  const std::vector<double> gradients = network.gradients(), parameters = network.parameters();
  CHECK(gradients[3] == Approx(0.5 * 2 * 1e-2 * parameters[3]));
  CHECK(gradients[4 * 9] == 0);  // a bias
}

TEST_CASE("an invalid shape or setting is refused with the layer and the found value") {
  const auto build = [](LayerList layers) { Sequential({4, 4, 3}, std::move(layers), {}); };
  CHECK_THROWS_WITH(
      build(Layers(Dense(9), Reshape({2, 2, 2}))),
      "layer 1 (reshape 2x2x2) needs an input of 8 values, got 9 = 9");
  CHECK_THROWS_WITH(
      build(Layers(Reshape({28, 28, 1}))),
      "layer 0 (reshape 28x28x1) needs an input of 784 values, got 4x4x3 = 48");
  CHECK_THROWS_WITH(
      build(Layers(AveragePool2D(5))),
      "layer 0 (average_pool2d 5x5 stride 5) needs an input of at least 5x5, got 4x4x3");
  CHECK_THROWS_WITH(
      build(Layers(MaxPool2D({.size = 3, .stride = 0}))),
      "layer 0 (max_pool2d 3x3 stride 0) needs a stride of at least 1, got 0");
  CHECK_THROWS_WITH(build(Layers(Dense(0))), "layer 0 (dense 0) needs at least 1 unit, got 0");
}

}  // namespace
}  // namespace dtrun::models
