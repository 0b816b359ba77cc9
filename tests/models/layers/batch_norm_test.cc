// Batch normalization, and residual blocks, which mostly consist of it.

#include "models/layers/batch_norm.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "models/layers/activations.h"
#include "models/layers/conv2d.h"
#include "models/layers/dense.h"
#include "models/layers/pooling.h"
#include "models/layers/residual.h"
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
using dtrun::testing::Moments;
using dtrun::testing::MomentsOf;
using dtrun::testing::Normalize;
using dtrun::testing::ReluOf;

constexpr double kEpsilon = 1e-3;
const BatchNormOptions kWithRelu{.activation = Activation::kRelu};

// All examples use the same parameters, so each call starts at the first parameter again.
template <typename Function>
Batch ForEachWith(const Batch& batch, const double*& parameter, const Function& function) {
  const double* const first = parameter;
  return ForEach(batch, [&](const Activations& x) {
    parameter = first;
    return function(x);
  });
}

Batch ConvolveAll(const Batch& batch, int filters, const Window& window, const double*& parameter) {
  return ForEachWith(batch, parameter, [&](const Activations& x) {
    return Convolve(x, filters, window, true, parameter);
  });
}

Batch NormalizeAll(const Batch& batch, const double*& parameter) {
  return Normalize(batch, MomentsOf(batch), kEpsilon, parameter);
}

Batch ReluAll(const Batch& batch) { return ForEach(batch, ReluOf); }

Batch ConnectAll(const Batch& batch, int units, const double*& parameter) {
  return ForEachWith(
      batch, parameter, [&](const Activations& x) { return Connect(x, units, parameter); });
}

Batch SumAll(Batch a, const Batch& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] = dtrun::testing::Sum(a[i], b[i]);
  return a;
}

TEST_CASE("batch normalization gradients match float64 differences in every format") {
  for (int filters : {16, 20, 5}) {
    CheckGradients(
        {6, 5, 1}, Layers(Conv2D(filters, 3), BatchNorm(kWithRelu), Dense(3)),
        [=](const Batch& x, const double*& parameter) {
          const Batch y = NormalizeAll(ConvolveAll(x, filters, {3}, parameter), parameter);
          return ConnectAll(ReluAll(y), 3, parameter);
        });
  }
  // As the first layer, after a ReLU, after another normalization and as the last layer.
  CheckGradients(
      {4, 3, 3}, Layers(BatchNorm(), Dense(7, Activation::kRelu), BatchNorm(), Dense(3)),
      [](const Batch& x, const double*& parameter) {
        const Batch y = ReluAll(ConnectAll(NormalizeAll(x, parameter), 7, parameter));
        return ConnectAll(NormalizeAll(y, parameter), 3, parameter);
      });
  CheckGradients(
      {4, 3, 3},
      Layers(Conv2D(3, 2), BatchNorm(), Relu(), BatchNorm(), Flatten(), Dense(3), BatchNorm()),
      [](const Batch& x, const double*& parameter) {
        Batch y = NormalizeAll(ConvolveAll(x, 3, {2}, parameter), parameter);
        y = ConnectAll(NormalizeAll(ReluAll(y), parameter), 3, parameter);
        return NormalizeAll(y, parameter);
      });
}

TEST_CASE("pooling may follow batch normalization with disjoint and overlapping windows") {
  for (const Window& window : {Window{2, 2}, Window{3, 2, Padding::Same()}}) {
    CheckGradients(
        {8, 7, 1},
        Layers(
            Conv2D(16, 3), BatchNorm(kWithRelu), MaxPool2D(window), Conv2D(4, 2), BatchNorm(),
            Dense(3)),
        [&](const Batch& x, const double*& parameter) {
          Batch y = ReluAll(NormalizeAll(ConvolveAll(x, 16, {3}, parameter), parameter));
          y = ForEach(y, [&](const Activations& a) { return MaxOfWindows(a, window); });
          y = NormalizeAll(ConvolveAll(y, 4, {2}, parameter), parameter);
          return ConnectAll(y, 3, parameter);
        });
  }
}

std::vector<double> ValuesOf(const Buffer& buffer) {
  const auto* value = static_cast<const float*>(buffer.data);
  return {value, value + buffer.count};
}

TEST_CASE("moving averages follow the batches and evaluation normalizes by them") {
  CheckedNetwork network({4, 3, 2}, Layers(BatchNorm({.momentum = 0.75}), Dense(3)), 5, {2, 3, 7});
  const auto& buffers = network.model().buffers();
  REQUIRE(buffers.size() == 2);
  CHECK(buffers[0].name == "layer0.batch_norm.moving_mean");
  CHECK(buffers[1].name == "layer0.batch_norm.moving_variance");
  CHECK(ValuesOf(buffers[0].buffer) == std::vector<double>{0, 0});
  CHECK(ValuesOf(buffers[1].buffer) == std::vector<double>{1, 1});
  network.Forward(true);
  network.Forward(true);
  const Moments batch = MomentsOf(network.inputs());
  Moments moving{{0, 0}, {1, 1}};
  for (size_t c = 0; c < 2; ++c) {
    for (int step = 0; step < 2; ++step) {
      moving.mean[c] = 0.75 * moving.mean[c] + 0.25 * batch.mean[c];
      moving.variance[c] = 0.75 * moving.variance[c] + 0.25 * batch.variance[c];
    }
    CHECK(ValuesOf(buffers[0].buffer)[c] == Approx(moving.mean[c]).epsilon(1e-5));
    CHECK(ValuesOf(buffers[1].buffer)[c] == Approx(moving.variance[c]).epsilon(1e-5));
  }
  network.Forward(false);
  const std::vector<double> parameters = network.parameters();
  const double* parameter = parameters.data();
  const Batch expected =
      ConnectAll(Normalize(network.inputs(), moving, kEpsilon, parameter), 3, parameter);
  const std::vector<float> outputs = network.outputs();
  for (size_t i = 0; i < outputs.size(); ++i)
    CHECK(outputs[i] == Approx(expected[i / 3].values[i % 3]).epsilon(1e-4));
  CHECK(ValuesOf(buffers[0].buffer)[0] == Approx(moving.mean[0]).epsilon(1e-5));
}

TEST_CASE("values far from zero are normalized as precisely as values near zero") {
  CheckedNetwork network({1, 1, 1}, Layers(BatchNorm({.momentum = 0})), 4, {4, 1, 7});
  network.model().PrepareWeights();
  for (int i = 0; i < 4; ++i) network.model().input()[i] = 10000.0f + float(i);
  Pass pass;
  pass.training = true;
  network.model().Forward(pass, 4);
  CHECK(ValuesOf(network.model().buffers()[0].buffer)[0] == 10001.5);
  CHECK(ValuesOf(network.model().buffers()[1].buffer)[0] == Approx(1.25).epsilon(1e-6));
}

TEST_CASE("batch normalization refuses a part of a rank's share and reports the model's capacity") {
  Sequential model({4, 4, 1}, Layers(Conv2D(4, 3), BatchNorm(), Dense(3)), {2, 2, 7});
  Pass part;
  part.training = true;
  part.last = false;
  CHECK_THROWS_WITH(
      model.Forward(part, 4),
      "layer 1 (batch_norm) needs all examples of a rank's share in one pass, got a part of them: "
      "the model has room for micro_batch 2 * micro_batches 2 = 4");
  part.training = false;  // evaluation accepts parts
  CHECK_NOTHROW(model.Forward(part, 4));
  CHECK_THROWS_WITH(
      Sequential({4, 4, 1}, Layers(BatchNorm({.synchronized = true})), {}),
      "layer 0 (batch_norm synchronized) needs SequentialOptions::communicator to synchronise "
      "over");
  CHECK_THROWS_WITH(
      Sequential({4, 4, 1}, Layers(BatchNorm({.momentum = 1})), {}),
      "layer 0 (batch_norm) needs a momentum of at least 0 and below 1, got 1");
}

const Conv2DOptions kSame{.padding = Padding::Same()};
constexpr Window kSameWindow{3, 1, Padding::Same()};

TEST_CASE("residual block gradients match float64 differences on both paths") {
  for (int filters : {16, 5}) {
    CheckGradients(
        {5, 4, 1},
        Layers(
            Conv2D(filters, 2, Activation::kRelu),
            Residual(
                Layers(
                    Conv2D(filters, 3, kSame), BatchNorm(kWithRelu), Conv2D(filters, 3, kSame),
                    BatchNorm()),
                Layers(Conv2D(filters, 1), BatchNorm())),
            GlobalAveragePool2D(), Dense(3)),
        [=](const Batch& input, const double*& parameter) {
          const Batch x = ReluAll(ConvolveAll(input, filters, {2}, parameter));
          Batch y =
              ReluAll(NormalizeAll(ConvolveAll(x, filters, kSameWindow, parameter), parameter));
          y = NormalizeAll(ConvolveAll(y, filters, kSameWindow, parameter), parameter);
          const Batch side = NormalizeAll(ConvolveAll(x, filters, {1}, parameter), parameter);
          y = ForEach(ReluAll(SumAll(y, side)), MeanOfPixels);
          return ConnectAll(y, 3, parameter);
        });
  }
}

TEST_CASE("the shortcut of a block may be its input in every format") {
  for (int filters : {16, 5, 3}) {
    CheckGradients(
        {5, 4, 3},
        Layers(
            Conv2D(filters, 2, Activation::kRelu),
            Residual(Layers(Conv2D(filters, 3, kSame), BatchNorm())),
            Residual(Layers(BatchNorm(), Relu(), Conv2D(filters, 3, kSame)), {}, Activation::kNone),
            Dense(3)),
        [=](const Batch& input, const double*& parameter) {
          Batch x = ReluAll(ConvolveAll(input, filters, {2}, parameter));
          Batch y = NormalizeAll(ConvolveAll(x, filters, kSameWindow, parameter), parameter);
          x = ReluAll(SumAll(x, y));
          y = ReluAll(NormalizeAll(x, parameter));
          y = ConvolveAll(y, filters, kSameWindow, parameter);
          return ConnectAll(SumAll(x, y), 3, parameter);
        });
  }
}

TEST_CASE("a path may end with a ReLU or begin with a pool and a block may be the first layer") {
  const Window pool{3, 2, Padding::Same()};
  const Window strided{3, 2, Padding::Same()};
  CheckGradients(
      {6, 5, 2},
      Layers(
          Residual(
              Layers(Conv2D(
                  7, 3,
                  {.stride = 2, .padding = Padding::Same(), .activation = Activation::kRelu})),
              Layers(MaxPool2D(pool), Conv2D(7, 1, Activation::kRelu)), Activation::kNone),
          Residual(Layers(Conv2D(32, 2, Activation::kRelu)), Layers(Conv2D(32, 2))), Dense(3)),
      [=](const Batch& x, const double*& parameter) {
        Batch y = ReluAll(ConvolveAll(x, 7, strided, parameter));
        Batch side = ForEach(x, [&](const Activations& a) { return MaxOfWindows(a, pool); });
        y = SumAll(y, ReluAll(ConvolveAll(side, 7, {1}, parameter)));
        side = ReluAll(ConvolveAll(y, 32, {2}, parameter));
        y = ReluAll(SumAll(side, ConvolveAll(y, 32, {2}, parameter)));
        return ConnectAll(y, 3, parameter);
      });
  CheckGradients(
      {6, 5, 2},
      Layers(
          Conv2D(4, 3, Activation::kRelu),
          Residual(Layers(MaxPool2D(2)), Layers(Conv2D(4, 2, {.stride = 2}))), Dense(3)),
      [=](const Batch& input, const double*& parameter) {
        const Batch x = ReluAll(ConvolveAll(input, 4, {3}, parameter));
        const Batch y = ForEach(x, [](const Activations& a) { return MaxOfWindows(a, {2, 2}); });
        const Batch side = ConvolveAll(x, 4, {2, 2}, parameter);
        return ConnectAll(ReluAll(SumAll(y, side)), 3, parameter);
      });
}

TEST_CASE("blocks may be nested and contain dense layers and dropout") {
  CheckGradients(
      {1, 1, 6},
      Layers(
          Dense(8, Activation::kRelu),
          Residual(Layers(
              Dense(8), Dropout(0), Residual(Layers(Dense(5), BatchNorm(), Dense(8))), Dense(8))),
          Dense(3)),
      [](const Batch& input, const double*& parameter) {
        const Batch x = ReluAll(ConnectAll(input, 8, parameter));
        Batch y = ConnectAll(x, 8, parameter);
        Batch z = NormalizeAll(ConnectAll(y, 5, parameter), parameter);
        y = ReluAll(SumAll(y, ConnectAll(z, 8, parameter)));
        y = ConnectAll(y, 8, parameter);
        return ConnectAll(ReluAll(SumAll(x, y)), 3, parameter);
      });
}

TEST_CASE("in a bf16 network batch normalization and residual blocks compute in f32") {
  const auto gradients = [](DType dtype) {
    CheckedNetwork network(
        {8, 7, 1},
        Layers(
            Conv2D(16, 3, Activation::kRelu), Conv2D(16, 3), BatchNorm(kWithRelu),
            Residual(Layers(Conv2D(16, 3, kSame), BatchNorm())), Conv2D(16, 2), Dense(3)),
        5, {.micro_batch = 2, .micro_batches = 3, .seed = 7, .dtype = dtype});
    network.Train();
    return network.gradients();
  };
  const std::vector<double> exact = gradients(DType::kF32), rounded = gradients(DType::kBF16);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    difference += std::pow(exact[i] - rounded[i], 2);
    norm += exact[i] * exact[i];
  }
  // Roundings are 2^-9. A batch of 5 examples amplifies them. Wrong gradients would be off by 1.
  CHECK(std::sqrt(difference / norm) < 0.25);
}

TEST_CASE("parameters and buffers of a block are named by path and position") {
  Sequential model(
      {4, 4, 16},
      Layers(Residual(Layers(Conv2D(16, 3, kSame), BatchNorm()), Layers(Conv2D(16, 1)))), {});
  std::vector<std::string> names;
  for (const Parameter& parameter : model.parameters()) names.push_back(parameter.name);
  CHECK(
      names ==
      std::vector<std::string>{
          "layer0.residual.main0.conv2d.kernel", "layer0.residual.main0.conv2d.bias",
          "layer0.residual.main1.batch_norm.gamma", "layer0.residual.main1.batch_norm.beta",
          "layer0.residual.shortcut0.conv2d.kernel", "layer0.residual.shortcut0.conv2d.bias"});
  CHECK(model.buffers()[1].name == "layer0.residual.main1.batch_norm.moving_variance");
}

TEST_CASE("a block is refused with both shapes if its paths have different output shapes") {
  const auto build = [](Residual block) { Sequential({4, 4, 3}, Layers(std::move(block)), {}); };
  CHECK_THROWS_WITH(
      build(Residual(Layers(Conv2D(8, 3)))),
      "layer 0 (residual [conv2d 8 3x3] + [input] relu) needs paths with equal outputs, got 2x2x8 "
      "from the main path and 4x4x3 from the shortcut");
  CHECK_THROWS_WITH(
      build(Residual(Layers(Conv2D(3, 3, kSame), Conv2D(3, 5)))),
      "layer 0 (residual [conv2d 3 3x3 same, conv2d 3 5x5] + [input] relu) main 1 (conv2d 3 5x5) "
      "needs an input of at least 5x5, got 4x4x3");
  CHECK_THROWS_WITH(
      build(Residual(Layers(Conv2D(3, 3, kSame), Dropout(0.5)))),
      "layer 0 (residual [conv2d 3 3x3 same, dropout 0.5] + [input] relu) main 1 (dropout 0.5) "
      "works in place, expected a layer that does not work in place as the first and the last "
      "layer of a path");
  CHECK_THROWS_WITH(
      build(Residual({})),
      "layer 0 (residual [] + [input] relu) needs at least one layer in its main path");
}

}  // namespace
}  // namespace dtrun::models
