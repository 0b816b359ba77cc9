// Networks of all layers on a GPU, compared with the CPU: outputs, gradients and buffers.

#include <dtrun/error.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "models/gpu/cuda_device.h"
#include "models/layers/activations.h"
#include "models/layers/batch_norm.h"
#include "models/layers/conv2d.h"
#include "models/layers/dense.h"
#include "models/layers/layer.h"
#include "models/layers/network_graph.h"
#include "models/layers/pooling.h"
#include "models/layers/residual.h"
#include "models/layers/sequential.h"
#include "models/networks/network.h"
#include "models/optim/sgd.h"
#include "tests/models/gpu/gpu_rig.h"

namespace dtrun::testing {
namespace {

using namespace models;

using MakeLayers = std::function<LayerList()>;
using Floats = std::vector<float>;

constexpr int kChunk = 6, kExamples = 5;

struct Setting {
  DType dtype = DType::kF32;
  Rewrites rewrites = Rewrites::kAll;
};

std::unique_ptr<ComputeDevice> TestDevice(const Setting& setting) {
  return MakeCudaDevice({.tf32 = false, .rewrites = setting.rewrites, .workspace_bytes = 1 << 20});
}

// Numbers between -1 and 1 that every dtype represents exactly.
Floats MadeUpFloats(size_t count, uint32_t salt) {
  Floats values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>((i * 2654435761u + salt * 40503u) >> 7 & 127) / 64 - 1;
  return values;
}

// A network on a device, with memory for its gradients.
class Trained {
 public:
  Trained(const models::Shape& input, LayerList layers, ComputeDevice& device, DType dtype)
      : device_(device),
        model_(
            input, std::move(layers),
            {.micro_batch = kChunk,
             .micro_batches = 1,
             .seed = 3,
             .dtype = dtype,
             .device = &device}) {
    for (Parameter& parameter : model_.parameters())
      parameter.gradient =
          device.Allocate(parameter.value.count, DType::kF32, memory_.emplace_back());
    model_.PrepareWeights();
  }

  Sequential& model() { return model_; }

  // Two passes of a step: over kExamples examples each.
  void Step() {
    for (uint32_t i = 0; i < 2; ++i) {
      Pass pass;
      pass.training = true;
      pass.step = 7;
      pass.first_example = i * kExamples;
      pass.first = i == 0 || model_.layers().empty();
      pass.last = i == 1;
      if (NeedsWholeShare()) pass.first = pass.last = true;
      RunPass(pass, i);
      if (NeedsWholeShare()) return;
    }
  }

  Floats Forward(bool training) {
    Pass pass;
    pass.training = training;
    Forward(pass, 9);
    return Output();
  }

  Floats Output() {
    return Floats(model_.output(), model_.output() + kExamples * model_.classes());
  }
  Floats Read(const Buffer& buffer) {
    Floats values(buffer.count);
    device_.Copy(buffer, Buffer(values.data(), values.size()));
    return values;
  }

 private:
  bool NeedsWholeShare() const {
    return std::any_of(model_.layers().begin(), model_.layers().end(), [](const Layer* layer) {
      return layer->needs_whole_share();
    });
  }

  void Forward(const Pass& pass, uint32_t salt) {
    const Floats inputs = MadeUpFloats(kExamples * model_.inputs(), salt);
    std::copy(inputs.begin(), inputs.end(), model_.input());
    model_.Forward(pass, kExamples);
  }

  void RunPass(const Pass& pass, uint32_t salt) {
    Forward(pass, salt);
    const Floats gradient = MadeUpFloats(kExamples * model_.classes(), salt + 20);
    std::fill_n(model_.output_gradient(), kChunk * model_.classes(), 0.0f);
    std::copy(gradient.begin(), gradient.end(), model_.output_gradient());
    model_.Backward(pass, kExamples, [](size_t) {});
  }

  ComputeDevice& device_;
  std::vector<std::shared_ptr<void>> memory_;
  Sequential model_;
};

// Compares all that a step computes. The CPU computes in f32.
void CheckSame(const models::Shape& input, const MakeLayers& layers, const Setting& setting) {
  const double tolerance = setting.dtype == DType::kF32    ? 1e-5
                           : setting.dtype == DType::kBF16 ? 2e-2
                                                           : 4e-3;
  const auto device = TestDevice(setting);
  Trained cpu(input, layers(), Cpu(), DType::kF32), gpu(input, layers(), *device, setting.dtype);
  INFO(gpu.model().description());
  cpu.Step();
  gpu.Step();
  CHECK(Distance(gpu.Output(), cpu.Output()) <= tolerance);
  for (size_t i = 0; i < cpu.model().parameters().size(); ++i) {
    const Parameter &expected = cpu.model().parameters()[i], &got = gpu.model().parameters()[i];
    INFO(expected.name);
    CHECK(gpu.Read(got.value) == cpu.Read(expected.value));
    CHECK(Distance(gpu.Read(got.gradient), cpu.Read(expected.gradient)) <= 2 * tolerance);
  }
  for (size_t i = 0; i < cpu.model().buffers().size(); ++i)
    CHECK(
        Distance(
            gpu.Read(gpu.model().buffers()[i].buffer), cpu.Read(cpu.model().buffers()[i].buffer)) <=
        tolerance);
  CHECK(Distance(gpu.Forward(false), cpu.Forward(false)) <= tolerance);
}

Setting InF32() { return {DType::kF32, GENERATE(Rewrites::kAll, Rewrites::kNone)}; }

constexpr Activation kRelu = Activation::kRelu;

TEST_CASE("each layer on a GPU computes what it computes on the CPU", "[cuda_network]") {
  const Setting setting = InF32();
  SECTION("dense, with and without ReLU") {
    CheckSame(
        {1, 1, 13}, [] { return Layers(Dense(17, kRelu), Dense(9), Dense(5)); }, setting);
  }
  SECTION("convolutions of any window") {
    const auto layers = [] {
      return Layers(
          Conv2D(7, 3, {.padding = Padding::Same(), .activation = kRelu}),
          Conv2D(5, 5, {.stride = 2, .padding = Padding::Pixels(2), .use_bias = false}),
          Conv2D(3, 2, {.stride = 2, .padding = Padding::Same(), .activation = kRelu}),
          Conv2D(6, 1, {.activation = kRelu, .use_bias = false}), Dense(4));
    };
    CheckSame({11, 9, 3}, layers, setting);
  }
  SECTION("pools side by side and overlapping") {
    const auto layers = [] {
      return Layers(
          Conv2D(5, 3), MaxPool2D(2), Conv2D(6, 1),
          MaxPool2D({.size = 3, .stride = 2, .padding = Padding::Same()}), Conv2D(4, 1),
          AveragePool2D({.size = 3, .stride = 1, .padding = Padding::Pixels(1)}), Dense(3));
    };
    CheckSame({17, 15, 2}, layers, setting);
  }
  SECTION("global average pool") {
    CheckSame(
        {6, 5, 3}, [] { return Layers(Conv2D(7, 3), GlobalAveragePool2D()); }, setting);
  }
  SECTION("dropout and ReLU") {
    const auto layers = [] {
      return Layers(
          Conv2D(9, 3), Relu(), Dropout(0.25), Flatten(), Dense(21), Dropout(0.5), Dense(3));
    };
    CheckSame({7, 7, 1}, layers, setting);
  }
  SECTION("reshape and softmax") {
    const auto layers = [] {
      return Layers(Dense(12), Reshape({2, 2, 3}), Conv2D(5, 1), Softmax(), Dense(4), Softmax());
    };
    CheckSame({3, 3, 1}, layers, setting);
  }
  SECTION("batch normalisation") {
    const auto layers = [] {
      return Layers(
          Conv2D(7, 3, {.use_bias = false}), BatchNorm({.activation = kRelu}),
          Conv2D(5, 3, {.use_bias = false}), BatchNorm(), Dense(4));
    };
    CheckSame({9, 8, 3}, layers, setting);
  }
  SECTION("residual blocks") {
    const auto layers = [] {
      return Layers(
          Conv2D(6, 3, {.padding = Padding::Same()}),
          Residual(Layers(
              Conv2D(6, 3, {.padding = Padding::Same(), .activation = kRelu}),
              Conv2D(6, 3, {.padding = Padding::Same()}))),
          Residual(
              Layers(
                  Conv2D(8, 3, {.stride = 2, .padding = Padding::Same(), .use_bias = false}),
                  BatchNorm()),
              Layers(Conv2D(8, 1, {.stride = 2, .use_bias = false}), BatchNorm())),
          GlobalAveragePool2D(), Dense(4));
    };
    CheckSame({8, 8, 2}, layers, setting);
  }
}

// Deep networks amplify the rounding of 16 bits, so each layer is one of few.
TEST_CASE("each layer on a GPU computes in 16 bits within their rounding", "[cuda_network]") {
  const Setting setting{
      GENERATE(DType::kBF16, DType::kF16), GENERATE(Rewrites::kAll, Rewrites::kNone)};
  const auto check = [&](const auto&... layers) {
    CheckSame(
        {8, 7, 3}, [&] { return Layers(layers()...); }, setting);
  };
  const auto dense = [] { return Dense(5); };
  const auto with = [](const Conv2DOptions& options) {
    return [=] { return Conv2D(6, 3, options); };
  };
  check([] { return Dense(17, kRelu); }, dense);
  check(with({.padding = Padding::Same(), .activation = kRelu}), dense);
  check(with({.stride = 2, .padding = Padding::Pixels(1), .use_bias = false}), dense);
  check(
      with({.stride = 2, .padding = Padding::Same()}), [] { return Relu(); }, dense);
  check(
      with({}), [] { return AveragePool2D(2); }, dense);
  check(with({}), [] { return GlobalAveragePool2D(); });
  check(
      with({}), [] { return Dropout(0.25); }, dense);
  check([] { return MaxPool2D(2); }, with({}), dense);
  check([] { return Dense(12); }, [] { return Reshape({2, 2, 3}); }, dense);
  check([] { return Dense(6); }, [] { return Softmax(); }, dense);
  check(
      with({.use_bias = false}), [] { return BatchNorm(); }, dense);
  check(
      with({}),
      [] {
        return Residual(Layers(Conv2D(6, 3, {.padding = Padding::Same()})), {}, Activation::kNone);
      },
      dense);
}

class Swish : public PlainLayer {
 public:
  std::string kind() const override { return "swish"; }
  models::Shape OutputShape(const models::Shape& input) const override { return input; }

 protected:
  void Compute(const Pass&, const float*, float*) override {}
  void ComputeGradients(const Pass&, const float*, const float*, float*) override {}
};

TEST_CASE("a layer without a description is refused by name on a GPU", "[cuda_network]") {
  const auto device = TestDevice({});
  CHECK_THROWS_WITH(
      Sequential({1, 1, 4}, Layers(Dense(3), Swish()), {.device = device.get()}),
      Catch::Contains("layer 1 (swish) is computed on the CPU only"));
}

TEST_CASE("a GPU refuses f64 networks", "[cuda_network]") {
  const auto device = TestDevice({});
  CHECK_THROWS_WITH(
      Sequential({1, 1, 4}, Layers(Dense(3)), {.dtype = DType::kF64, .device = device.get()}),
      Catch::Contains("f32, bf16 or f16, got f64"));
}

TEST_CASE("a network without parameters passes gradients on a GPU", "[cuda_network]") {
  CheckSame(
      {4, 4, 3}, [] { return Layers(MaxPool2D(2), Flatten()); }, InF32());
  CheckSame(
      {4, 4, 3}, [] { return LayerList(); }, InF32());
}

TEST_CASE("a GPU refuses networks that its kernels cannot compute", "[cuda_network]") {
  const auto device = TestDevice({});
  CHECK_THROWS_WITH(
      Sequential(
          {64, 64, 1}, Layers(Conv2D(4, 3)), {.micro_batch = 1 << 20, .device = device.get()}),
      Catch::Contains("layer 0 (conv2d 4 3x3): ") && Catch::Contains("fewer than 2^31 values"));
  CHECK_THROWS_WITH(
      Sequential(
          {1, 1, 4}, Layers(Dense(3), Softmax()), {.dtype = DType::kF16, .device = device.get()}),
      Catch::Contains("layer 1 (softmax) is the last layer of a network in f16"));
}

TEST_CASE("an optimizer refuses parameters of another device", "[cuda_network]") {
  const auto device = TestDevice({});
  Sequential model({1, 1, 4}, Layers(Dense(3)), {.device = device.get()});
  CHECK_THROWS_WITH(
      Sgd(model.parameters(), {}),
      "layer0.dense.kernel lies on GPU 0, the optimizer updates parameters in host memory; "
      "expected "
      "the device of the network as the optimizer's device");
  Sequential on_cpu({1, 1, 4}, Layers(Dense(3)), {});
  CHECK_THROWS_WITH(
      Sgd(on_cpu.parameters(), {}, *device), Catch::Contains("lies in host memory, the optimizer"));
}

TEST_CASE("regularisers see the parameters on a GPU", "[cuda_network]") {
  const auto layers = [] {
    return Layers(Conv2D(5, 3, {.kernel_l2 = 0.1}), Dense(3, DenseOptions{.kernel_l2 = 0.2}));
  };
  const auto device = TestDevice({});
  Trained cpu({6, 6, 2}, layers(), Cpu(), DType::kF32);
  Trained gpu({6, 6, 2}, layers(), *device, DType::kF32);
  CHECK(gpu.model().RegularizationLoss() == Approx(cpu.model().RegularizationLoss()).epsilon(1e-6));
  CheckSame({6, 6, 2}, layers, {});
}

}  // namespace
}  // namespace dtrun::testing
