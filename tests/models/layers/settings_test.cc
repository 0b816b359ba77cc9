// The settings of layers, and layers made from settings.

#include <dtrun/error.h>

#include <catch2/catch.hpp>
#include <string>

#include "models/layers/activations.h"
#include "models/layers/batch_norm.h"
#include "models/layers/pooling.h"
#include "models/layers/registry.h"
#include "models/layers/residual.h"
#include "models/networks/network.h"

namespace dtrun::models {
namespace {

std::string Refusal(const std::function<void()>& make) {
  try {
    make();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "taken";
}

std::string Refusal(const std::string& kind, const LayerSettings& settings) {
  return Refusal([&] { LayerRegistry::BuiltIn().MakeLayer({kind, settings}); });
}

TEST_CASE("every layer is made again from its settings") {
  const LayerList layers = NetworkC(10);
  const std::vector<LayerConfig> configs = ConfigsOf(layers);
  const LayerList again = LayerRegistry::BuiltIn().MakeLayers(configs);
  REQUIRE(again.size() == layers.size());
  CHECK(ConfigsOf(again) == configs);
  for (size_t i = 0; i < layers.size(); ++i)
    CHECK(again[i]->description() == layers[i]->description());
  CHECK(configs[0].kind == "conv2d");
  CHECK(
      configs[0].settings == LayerSettings()
                                 .Set("filters", 32)
                                 .Set("kernel_size", 3)
                                 .Set("strides", 1)
                                 .Set("padding", "valid")
                                 .Set("activation", "relu")
                                 .Set("use_bias", true)
                                 .Set("kernel_initializer", "glorot_uniform")
                                 .Set("kernel_l2", 0.0));
}

TEST_CASE("windows and normalizations and blocks are made again from their settings") {
  LayerList block = Layers(
      Conv2D(
          8, 3,
          {.stride = 2,
           .padding = Padding::Same(),
           .use_bias = false,
           .kernel_initializer = Initializer::kHeNormal,
           .kernel_l2 = 1e-4}),
      BatchNorm({.momentum = 0.9, .epsilon = 1e-5, .synchronized = true, .initial_gamma = 0}));
  const LayerList layers = Layers(
      Reshape({8, 8, 1}), Conv2D(8, 5, {.padding = Padding::Pixels(2)}), Relu(),
      MaxPool2D({.size = 3, .stride = 2, .padding = Padding::Pixels(1)}), AveragePool2D(2),
      Residual(std::move(block), Layers(Conv2D(8, 1, {.stride = 2})), Activation::kNone),
      GlobalAveragePool2D(), Flatten(), Dense(3, DenseOptions{.kernel_l2 = 0.5}), Softmax());
  const std::vector<LayerConfig> configs = ConfigsOf(layers);
  const LayerList again = LayerRegistry::BuiltIn().MakeLayers(configs);
  REQUIRE(again.size() == layers.size());
  CHECK(ConfigsOf(again) == configs);
  for (size_t i = 0; i < layers.size(); ++i)
    CHECK(again[i]->description() == layers[i]->description());
  CHECK(configs[1].settings.Int("padding", 0, 9) == 2);
  CHECK(configs[5].settings.Layers("main")[0].settings.Text("padding") == "same");
}

TEST_CASE("a pool without strides has disjoint windows and an invalid padding is refused") {
  const auto pool =
      LayerRegistry::BuiltIn().MakeLayer({"average_pool2d", LayerSettings().Set("pool_size", 3)});
  CHECK(pool->settings().Int("strides", 1, 9) == 3);
  CHECK(
      Refusal("max_pool2d", LayerSettings().Set("pool_size", 3).Set("padding", "full")) ==
      "max_pool2d: padding: 'full', expected valid or same");
}

TEST_CASE("settings keep strides and padding as given") {
  const auto again = [](const Conv2DOptions& options) {
    const Conv2D layer(8, 3, options);
    const auto made = LayerRegistry::BuiltIn().MakeLayer(ConfigOf(layer));
    return layer.description() == made->description() ? made->description() : "another layer";
  };
  CHECK(again({.stride = 2, .padding = Padding::Same()}) == "conv2d 8 3x3 stride 2 same");
  CHECK(
      again({.padding = Padding::Pixels(1), .use_bias = false}) ==
      "conv2d 8 3x3 padding 1 without bias");
  CHECK(
      Refusal("conv2d", ConfigOf(Conv2D(8, 3)).settings.Set("padding", "full")) ==
      "conv2d: padding: 'full', expected valid or same");
}

TEST_CASE("a missing or mistyped or out-of-range setting is refused by name") {
  LayerSettings settings;
  CHECK(
      Refusal("max_pool2d", settings) ==
      "max_pool2d: pool_size: missing, expected an integer from 1 to 15");
  CHECK(
      Refusal("max_pool2d", settings.Set("pool_size", 16)) ==
      "max_pool2d: pool_size: 16, expected an integer from 1 to 15");
  CHECK(
      Refusal("max_pool2d", settings.Set("pool_size", "two")) ==
      "max_pool2d: pool_size: 'two', expected an integer from 1 to 15");
  CHECK(
      Refusal("dense", LayerSettings().Set("units", 3).Set("activation", "selu")) ==
      "dense: activation: 'selu', expected linear or relu");
  CHECK(
      Refusal("dropout", LayerSettings().Set("rate", true)) ==
      "dropout: rate: true, expected a number");
}

TEST_CASE("an unknown setting and an unknown kind of layer are refused") {
  CHECK(
      Refusal("dropout", LayerSettings().Set("rate", 0.5).Set("sede", 1)) ==
      "dropout: has no setting 'sede', expected rate");
  CHECK_THAT(
      Refusal("lstm", {}),
      Catch::StartsWith("no layer is of kind 'lstm', expected average_pool2d"));
  CHECK_THAT(
      Refusal([] {
        LayerRegistry::BuiltIn().MakeLayers({{"dropout", LayerSettings().Set("rate", 0.5)}, {}});
      }),
      Catch::StartsWith("layer 1: no layer is of kind ''"));
}

class Renamed : public Dropout {
 public:
  using Dropout::Dropout;
  std::string kind() const override { return "renamed"; }
};

TEST_CASE("a registry makes a user's own layers like built-in layers") {
  LayerRegistry registry = LayerRegistry::BuiltIn();
  registry.Add("renamed", [](const LayerSettings& settings) {
    return std::make_unique<Renamed>(settings.Number("rate"));
  });
  const auto layer = registry.MakeLayer(ConfigOf(Renamed(0.25)));
  CHECK(dynamic_cast<Renamed*>(layer.get()) != nullptr);
  CHECK(ConfigOf(*layer) == ConfigOf(Renamed(0.25)));
  CHECK(Refusal([&] { registry.Add("dense", {}); }) == "a layer of kind 'dense' exists already");
}

TEST_CASE("a network lists the given layers but not the format changes that it adds") {
  // The network may add a change of format between the convolution and the dense layer.
  const Sequential model({8, 8, 1}, Layers(Conv2D(16, 3), Dense(10)), {});
  REQUIRE(model.layers().size() == 2);
  CHECK(model.layers()[0]->kind() == "conv2d");
  CHECK(model.layers()[1]->kind() == "dense");
  CHECK(model.input_shape() == Shape{8, 8, 1});
}

}  // namespace
}  // namespace dtrun::models
