// The layout of a network's parameters on a device, and the networks that a GPU can compute.

#include <catch2/catch.hpp>
#include <numeric>

#include "models/gpu/network_plan.h"
#include "models/layers/activations.h"
#include "models/layers/batch_norm.h"
#include "models/layers/conv2d.h"
#include "models/layers/dense.h"
#include "models/layers/pooling.h"
#include "models/networks/network.h"

namespace dtrun::testing {
namespace {

using namespace models;  // NOLINT: their names are the subject

constexpr Activation kRelu = Activation::kRelu;

NetworkPlan PlanOf(LayerList layers, const Shape& input = {12, 12, 1}) {
  Sequential model(input, std::move(layers), {.micro_batch = 1, .micro_batches = 1});
  return PlanNetwork(model, 7);
}

TEST_CASE("parameters keep their values on the way to a device and back") {
  for (const auto order : {ParameterPlace::Order::kAsIs, ParameterPlace::Order::kFilters}) {
    const bool as_is = order == ParameterPlace::Order::kAsIs;
    const ParameterPlace place{
        .rows = 3, .columns = 2, .padded_columns = as_is ? 8u : 2u, .order = order};
    std::vector<float> host(6), device(place.count(), -1), again(6);
    std::iota(host.begin(), host.end(), 1.0f);
    place.ToDevice(host.data(), device.data());
    if (as_is) {
      CHECK(device[8] == 3);
      CHECK(device[10] == 0);
    } else {
      CHECK(device == std::vector<float>{1, 3, 5, 2, 4, 6});
    }
    place.ToHost(device.data(), again.data());
    CHECK(again == host);
  }
}

TEST_CASE("the plan of network C has the expected stages and sizes and operations") {
  Network network = NetworkByName("C");
  Sequential model(
      network.input, std::move(network.layers), {.micro_batch = 1, .micro_batches = 1});
  const NetworkPlan plan = PlanNetwork(model, 7);
  std::vector<StageKind> kinds;
  for (const Stage& stage : plan.stages) kinds.push_back(stage.kind);
  CHECK(
      kinds == std::vector<StageKind>{
                   StageKind::kFirstConvolution, StageKind::kConvolution, StageKind::kPool,
                   StageKind::kDense, StageKind::kOutput});
  CHECK(plan.stages[2].drops);
  CHECK(plan.stages[2].adds_bias);
  CHECK(plan.stages[3].drops);
  CHECK(plan.stages[4].width() == 16);
  // The plan pads the last layer from 10 classes to 16 and each parameter to a multiple of 128.
  CHECK(plan.parameter_count == 384 + 128 + 18432 + 128 + 1179648 + 128 + 16 * 128 + 128);
  for (const ParameterPlace& place : plan.parameters) CHECK(place.offset % 128 == 0);
  const double forward_of_convolution = 2.0 * 24 * 24 * 9 * 32 * 64;
  const double first = 2.0 * 26 * 26 * 9 * 32, dense = 2.0 * 9216 * 128, last = 2.0 * 128 * 10;
  CHECK(
      plan.OperationsPerExample() ==
      Approx(2 * first + 3 * (forward_of_convolution + dense + last)));
  CHECK(plan.BytesPerExample(4) > plan.BytesPerExample(2));
  CHECK(plan.Bytes(2, 2) - plan.Bytes(1, 2) == plan.Bytes(3, 2) - plan.Bytes(2, 2));
}

TEST_CASE("a layer that a GPU cannot compute is refused by name") {
  const auto refusal = [](LayerList layers) {
    try {
      PlanOf(std::move(layers));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  CHECK(refusal(Layers(Dense(8, kRelu), Dense(3))) == "none");
  CHECK_THAT(
      refusal(Layers(Conv2D(8, 5, kRelu), Dense(3))),
      Catch::Contains("layer 0 (conv2d 8 5x5 relu) has another kernel_size"));
  CHECK_THAT(refusal(Layers(Conv2D(12, 3, kRelu), Dense(3))), Catch::Contains("has other filters"));
  CHECK_THAT(
      refusal(Layers(Conv2D(8, 3, kRelu), Conv2D(8, 3, kRelu), Dense(3))),
      Catch::Contains("layer 2 (dense 3) follows a second convolution"));
  CHECK_THAT(
      refusal(Layers(Conv2D(8, 3, kRelu), MaxPool2D(3), Dense(3))),
      Catch::Contains("has another window"));
  CHECK_THAT(
      refusal(Layers(Conv2D(8, 3, kRelu), Dropout(0.5), Dense(3))),
      Catch::Contains("layer 1 (dropout 0.5) follows another layer"));
  CHECK_THAT(refusal(Layers(Dense(12, kRelu), Dense(3))), Catch::Contains("has other units"));
  CHECK_THAT(refusal(Layers(Dense(8), Dense(3))), Catch::Contains("layer 0 (dense 8) has no ReLU"));
  CHECK_THAT(refusal(Layers(Dense(8, kRelu))), Catch::Contains("a dense layer without activation"));
  CHECK_THAT(
      refusal(Layers(BatchNorm(), Dense(3))),
      Catch::Contains("layer 0 (batch_norm) is of another kind"));
}

}  // namespace
}  // namespace dtrun::testing
