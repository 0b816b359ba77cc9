// Models are saved and then loaded without the code that built them.

#include "models/formats/model/saved_model.h"

#include <dtrun/error.h>
#include <dtrun/tensors.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "models/layers/batch_norm.h"
#include "models/networks/network.h"
#include "tests/support/json.h"
#include "tests/support/python.h"
#include "tests/support/text.h"

namespace dtrun::models {
namespace {

using nlohmann::json;
using testing::ParseJson;
using testing::ReadJson;
using testing::ReadText;
using testing::TemporaryFolder;

std::unique_ptr<Sequential> NewNetwork(uint64_t seed) {
  return std::make_unique<Sequential>(
      Shape{12, 12, 1}, NetworkC(4), SequentialOptions{.seed = seed});
}

std::vector<float> ValuesOf(Sequential& model) {
  std::vector<float> values;
  for (const Parameter& parameter : model.parameters()) {
    const auto* first = static_cast<const float*>(parameter.value.data);
    values.insert(values.end(), first, first + parameter.value.count);
  }
  for (const NamedBuffer& buffer : model.buffers()) {
    const auto* first = static_cast<const float*>(buffer.buffer.data);
    values.insert(values.end(), first, first + buffer.buffer.count);
  }
  return values;
}

std::vector<float> OutputsOf(Sequential& model) {
  model.PrepareWeights();
  for (size_t i = 0; i < 2 * model.input_shape().count(); ++i)
    model.input()[i] = float(i % 17) / 16;
  model.Forward(Pass{}, 2);
  return {model.output(), model.output() + 2 * model.classes()};
}

// A saved model with a model.json that tests change.
class Saved {
 public:
  Saved() { SaveModel(*NewNetwork(1), folder()); }
  const std::string& folder() const { return folder_.path(); }
  std::string structure() const { return folder() + "/model.json"; }
  std::string weights() const {
    return folder() + "/" + ReadJson(structure())["weights"].get<std::string>();
  }

  template <typename Change>
  void ChangeStructure(const Change& change) const {
    json root = ReadJson(structure());
    change(root);
    std::ofstream(structure()) << root;
  }

  std::string Refusal() const {
    try {
      LoadModel(folder());
    } catch (const Error& error) {
      return error.what();
    }
    return "taken";
  }

 private:
  TemporaryFolder folder_;
};

TEST_CASE("a loaded model has the layers and weights and outputs of the saved model") {
  TemporaryFolder folder;
  const auto model = NewNetwork(5);
  const std::string path = folder.path() + "/runs/model";
  SaveModel(*model, path, {{"epoch", "8"}, {"note", "ä\n\""}});
  const auto again = LoadModel(path, {.sequential = {.micro_batch = 3, .micro_batches = 5}});
  CHECK(again->description() == model->description());
  CHECK(again->input_shape() == model->input_shape());
  CHECK(again->chunk() == 15);
  CHECK(ValuesOf(*again) == ValuesOf(*model));
  const std::vector<float> outputs = OutputsOf(*again), expected = OutputsOf(*model);
  for (size_t i = 0; i < expected.size(); ++i) CHECK(outputs[i] == Approx(expected[i]));
  CHECK(LoadModelMetadata(path).at("epoch") == "8");
  CHECK(LoadModelMetadata(path).at("note") == "ä\n\"");
}

TEST_CASE("buffers of layers are saved with the parameters") {
  TemporaryFolder folder;
  const auto network = [](uint64_t seed) {
    return std::make_unique<Sequential>(
        Shape{16, 16, 3}, ResNet({.blocks = {1}, .width = 4, .classes = 3}),
        SequentialOptions{.seed = seed});
  };
  const auto model = network(1);
  REQUIRE(!model->buffers().empty());
  float next = 0.5f;
  for (const NamedBuffer& buffer : model->buffers()) {
    auto* values = static_cast<float*>(buffer.buffer.data);
    for (uint64_t i = 0; i < buffer.buffer.count; ++i) values[i] = next += 0.125f;
  }
  SaveModel(*model, folder.path());
  const auto again = LoadModel(folder.path());
  CHECK(ValuesOf(*again) == ValuesOf(*model));
  CHECK(OutputsOf(*again) == OutputsOf(*model));
}

TEST_CASE("a single process loads a network with synchronized batch normalization") {
  TemporaryFolder folder;
  Sequential model({4, 4, 2}, Layers(BatchNorm(), Dense(2)), {});
  SaveModel(model, folder.path());
  const std::string path = folder.path() + "/model.json";
  json root = ReadJson(path);
  root["layers"][0]["settings"]["synchronized"] = true;
  std::ofstream(path) << root;
  CHECK(OutputsOf(*LoadModel(folder.path())) == OutputsOf(model));
}

TEST_CASE("saving replaces only the model's own files in the folder") {
  TemporaryFolder folder;
  folder.Write("notes.txt", "mine");
  for (uint64_t seed : {1, 2, 3}) {
    const auto model = NewNetwork(seed);
    SaveModel(*model, folder.path());
    CHECK(ValuesOf(*LoadModel(folder.path())) == ValuesOf(*model));
    CHECK(folder.Entries().size() == 3);  // the notes, the structure and the newest weights
  }
  CHECK(ReadText(folder.path() + "/notes.txt") == "mine");
}

TEST_CASE("the folder keeps the old model until the new model.json is written") {
  Saved saved;
  const std::vector<float> before = ValuesOf(*LoadModel(saved.folder()));
  // Builds the state of a process killed after writing the weights and before writing model.json.
  const std::string structure = ReadText(saved.structure());
  SaveModel(*NewNetwork(2), saved.folder());
  const std::string half = saved.folder() + "/weights-1.safetensors";
  CHECK(saved.weights() == saved.folder() + "/weights-2.safetensors");
  SaveModel(*NewNetwork(1), saved.folder());
  CHECK(saved.weights() == half);
  CHECK(ReadText(saved.structure()) == structure);
  std::filesystem::copy_file(half, saved.folder() + "/weights-2.safetensors");
  CHECK(ValuesOf(*LoadModel(saved.folder())) == before);
  SaveModel(*NewNetwork(3), saved.folder());
  CHECK(ValuesOf(*LoadModel(saved.folder())) == ValuesOf(*NewNetwork(3)));
}

TEST_CASE("the safetensors package reads the weights") {
  if (testing::PythonIsMissing()) return;
  Saved saved;
  const auto result = testing::RunPython({"tests/models/formats/read_tensors.py", saved.weights()});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const json tensors = ParseJson(result.out);
  const auto model = NewNetwork(1);
  REQUIRE(tensors.size() == model->parameters().size());
  CHECK(tensors["layer0.conv2d.kernel"][0] == "float32");
  CHECK(tensors["layer0.conv2d.kernel"][1] == json{3, 3, 1, 32});
  CHECK(tensors["layer6.dense.bias"][1] == json{4});
  for (const Parameter& parameter : model->parameters()) {
    const auto* first = static_cast<const float*>(parameter.value.data);
    double sum = 0;
    for (uint64_t i = 0; i < parameter.value.count; ++i) sum += double(first[i]);
    CHECK(tensors[parameter.name][2].get<double>() == Approx(sum).margin(1e-9));
  }
}

TEST_CASE("a missing or invalid saved model is refused by name") {
  TemporaryFolder folder;
  CHECK_THROWS_WITH(
      LoadModel(folder.path() + "/none"),
      folder.path() + "/none: not found, expected a saved model");
  CHECK_THROWS_WITH(
      LoadModel(folder.path()), folder.path() + ": has no model.json, expected a saved model");
  const std::string file = folder.Write("model.json", "{");
  CHECK_THROWS_WITH(LoadModel(folder.path()), file + ": not JSON");
}

TEST_CASE("an invalid structure is refused with the file and the layer and the setting") {
  const Saved saved;
  saved.ChangeStructure([](json& j) { j["layers"][2]["settings"]["pool_size"] = 0; });
  CHECK(
      saved.Refusal() ==
      saved.structure() + ": layer 2: max_pool2d: pool_size: 0, expected an integer from 1 to 15");
  saved.ChangeStructure([](json& j) { j["layers"][2]["settings"]["pool_size"] = 9; });
  CHECK(
      saved.Refusal() ==
      saved.structure() +
          ": layer 2 (max_pool2d 9x9 stride 2) needs an input of at least 9x9, got 8x8x64");
  saved.ChangeStructure([](json& j) { j["layers"][2]["kind"] = "mine"; });
  CHECK_THAT(
      saved.Refusal(),
      Catch::StartsWith(saved.structure() + ": layer 2: no layer is of kind 'mine', expected "));
  saved.ChangeStructure([](json& j) { j["version"] = 9; });
  CHECK(saved.Refusal() == saved.structure() + ": version: 9, expected 1");
}

TEST_CASE("weights of another network are refused with the tensor and both shapes") {
  const Saved saved;
  saved.ChangeStructure([](json& j) { j["layers"][6]["settings"]["units"] = 5; });
  CHECK(
      saved.Refusal() ==
      saved.weights() + ": 150532 values, expected 150661 as model.json describes them");
  saved.ChangeStructure([](json& j) { j["layers"][6]["settings"]["units"] = 4; });
  CHECK(saved.Refusal() == "taken");

  // The same number of values in other shapes.
  Sequential small({1, 1, 4}, Layers(Dense(3)), {});
  SaveModel(small, saved.folder());
  saved.ChangeStructure([](json& j) {
    j["input_shape"] = {1, 1, 2};
    j["layers"][0]["settings"]["units"] = 5;
  });
  CHECK(saved.Refusal() == saved.weights() + ": layer0.dense.kernel: f32 4x3, expected f32 2x5");
}

TEST_CASE("a changed byte of the weights is detected and missing weights are named") {
  const Saved saved;
  {
    std::fstream file(saved.weights(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-5, std::ios::end);
    file.put('\x55');
  }
  CHECK_THAT(saved.Refusal(), Catch::Contains(saved.weights()));
  std::filesystem::remove(saved.weights());
  CHECK_THAT(saved.Refusal(), Catch::Contains(saved.weights()));
}

TEST_CASE("a model folder that cannot be created is reported with the reason") {
  TemporaryFolder folder;
  const std::string file = folder.Write("file", "");
  CHECK_THROWS_WITH(
      SaveModel(*NewNetwork(1), file + "/model"), file + "/model: cannot be made: Not a directory");
}

}  // namespace
}  // namespace dtrun::models
