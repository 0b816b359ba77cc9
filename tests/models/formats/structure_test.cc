// Reading and writing model.json, and its errors.

#include <dtrun/error.h>

#include <catch2/catch.hpp>
#include <string>

#include "models/formats/model/model_structure.h"
#include "models/layers/registry.h"
#include "models/networks/network.h"
#include "tests/support/json.h"

namespace dtrun::models {
namespace {

using nlohmann::json;
using testing::ParseJson;

ModelStructure Example() {
  return {{28, 28, 1}, ConfigsOf(NetworkC(10)), "weights-1.safetensors", {{"epoch", "8 \"ä\""}}};
}

// The error of the example's model.json after `change`, or "taken".
std::string Refusal(const std::function<void(json&)>& change) {
  json root = ParseJson(ToJson(Example()));
  change(root);
  try {
    ParseStructure(root.dump());
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "taken";
}

TEST_CASE("a written structure reads back the same") {
  CHECK(ParseStructure(ToJson(Example())) == Example());
  ModelStructure nested = Example();
  nested.layers.push_back(
      {"residual", LayerSettings()
                       .Set("main", ConfigsOf(NetworkC(3)))
                       .Set("scale", 0.5)
                       .Set("shortcut", std::vector<LayerConfig>())});
  CHECK(ParseStructure(ToJson(nested)) == nested);
}

TEST_CASE("errors in model.json name the place and the found value and the expected value") {
  CHECK(Refusal([](json& j) { j.erase("format"); }) == "format: missing, expected \"dtrun model\"");
  CHECK(Refusal([](json& j) {
          j["format"] = "keras";
        }) == "format: \"keras\", expected \"dtrun model\"");
  CHECK(Refusal([](json& j) { j["version"] = 2; }) == "version: 2, expected 1");
  CHECK(Refusal([](json& j) {
          j["input_shape"] = {28, 28};
        }) == "input_shape: [28,28], expected 3 integers from 1 to 65536");
  CHECK(Refusal([](json& j) {
          j["input_shape"][1] = 1e9;
        }) == "input_shape: [28,1000000000.0,1], expected 3 integers from 1 to 65536");
  CHECK(Refusal([](json& j) {
          j["layers"] = json::array();
        }) == "layers: [], expected a list of layers");
  CHECK(Refusal([](json& j) {
          j["layers"][2] = 5;
        }) == "layer 2: 5, expected an object with kind and settings");
  CHECK(Refusal([](json& j) {
          j["layers"][1].erase("kind");
        }) == "layer 1: kind: missing, expected a text");
  CHECK(
      Refusal([](json& j) { j["layers"][0]["settings"]["filters"] = nullptr; }) ==
      "layer 0: settings: filters: null, expected a number, text, true, false or a list of layers");
  CHECK(Refusal([](json& j) {
          j["layers"][0]["settings"]["filters"] = {1, 2};
        }) == "layer 0: settings: filters: layer 0: 1, expected an object with kind and settings");
  CHECK(Refusal([](json& j) {
          j["weights"] = "../weights";
        }) == "weights: \"../weights\", expected the name of a file in the same folder");
  CHECK(Refusal([](json& j) {
          j["metadata"]["epoch"] = 8;
        }) == "metadata: epoch: 8, expected a text");
  CHECK_THROWS_WITH(ParseStructure("{"), "not JSON");
  CHECK_THROWS_WITH(ParseStructure("[]"), "[], expected an object");
}

TEST_CASE("too deeply nested layers are refused") {
  const std::string error = Refusal([](json& j) {
    json layer = j["layers"][0];
    for (int i = 0; i < 30; ++i)
      layer = {{"kind", "residual"}, {"settings", {{"main", json::array({layer})}}}};
    j["layers"] = json::array({layer});
  });
  CHECK_THAT(error, Catch::EndsWith("expected a depth of at most 8"));
}

TEST_CASE("shapes are known before a network is built and too large shapes are refused") {
  const auto shapes = [](const Shape& input, const LayerList& layers) {
    std::vector<const Layer*> list;
    for (const auto& layer : layers) list.push_back(layer.get());
    return ShapesOf(input, list);
  };
  const LayerList layers = NetworkC(10);
  const std::vector<LayerShapes> all = shapes({28, 28, 1}, layers);
  CHECK(CountOf(all) == 1199882);
  CHECK(all[2].output == Shape{12, 12, 64});
  CHECK_THROWS_WITH(
      shapes({4, 4, 1}, layers),
      "layer 1 (conv2d 64 3x3 relu) needs an input of at least 3x3, got 2x2x32");
  CHECK_THROWS_WITH(
      shapes({65536, 65536, 1}, Layers(Conv2D(64, 1))),
      "layer 0 (conv2d 64 1x1) is too large: 65536x65536x64 values of one example");
  CHECK_THROWS_WITH(
      shapes({1024, 1024, 16}, Layers(Dense(1 << 20))),
      Catch::StartsWith("layer 0 (dense 1048576) is too large: "));
}

}  // namespace
}  // namespace dtrun::models
