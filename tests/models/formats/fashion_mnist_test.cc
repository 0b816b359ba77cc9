// A briefly trained network is exported and saved. ONNX Runtime and the loaded network classify the
// 10,000 test images as the network does.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "models/data/dataset.h"
#include "models/formats/model/saved_model.h"
#include "models/formats/onnx/onnx.h"
#include "models/networks/network.h"
#include "models/programs/predictions.h"
#include "tests/models/formats/brief_training.h"
#include "tests/support/python.h"

namespace dtrun::testing {
namespace {

using models::Dataset;
using models::Predictions;
using models::Sequential;

bool DataIsMissing() {
  if (std::filesystem::exists(models::kFashionMnistDir)) return false;
  std::printf("SKIPPED: there is no folder %s\n", models::kFashionMnistDir);
  return true;
}

std::vector<float> InOnnxRuntime(Sequential& model, const models::Images& images) {
  TemporaryFolder folder;
  const std::string onnx = folder.path() + "/model.onnx";
  const std::string in = folder.path() + "/in", out = folder.path() + "/out";
  models::ExportOnnx(model, onnx);
  std::vector<float> values(images.pixels.size());
  models::BytesToFloats(images.pixels.data(), values.size(), values.data());
  std::ofstream(in, std::ios::binary)
      .write(reinterpret_cast<const char*>(values.data()), std::streamsize(values.size() * 4));
  const std::string shape = model.input_shape().pixels() == 1 ? "784" : "1x28x28";
  const CommandResult result =
      RunPython({"tests/models/formats/run_onnx.py", onnx, in, shape, out});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  std::ifstream stream(out, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(stream), {});
  std::vector<float> outputs(bytes.size() / sizeof(float));
  std::memcpy(outputs.data(), bytes.data(), bytes.size());
  return outputs;
}

uint64_t CountCorrect(const std::vector<float>& probabilities, const std::vector<uint8_t>& labels) {
  uint64_t correct = 0;
  const size_t classes = probabilities.size() / labels.size();
  for (size_t i = 0; i < labels.size(); ++i) {
    const auto row = probabilities.begin() + ptrdiff_t(i * classes);
    correct += std::max_element(row, row + ptrdiff_t(classes)) - row == labels[i];
  }
  return correct;
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double(a[i]) - double(b[i]));
    largest = std::max(largest, difference / std::max(double(b[i]), 1e-30));
  }
  return largest;
}

TEST_CASE("saved and exported networks have the accuracy of the original on the test set") {
  if (PythonIsMissing() || DataIsMissing()) return;
  const Dataset data = models::LoadDataset(models::kFashionMnistDir);
  const std::string name = GENERATE("A", "B", "C", "D", "mlp");
  models::Network network = models::NetworkByName(name);
  Sequential model(network.input, std::move(network.layers), {.seed = 1});
  TrainBriefly(model, data.train, 40, 0.02f);
  CAPTURE(name);
  const Predictions ours = models::Predict(model, data.test, {0, data.test.count});
  CHECK(ours.tally.accuracy() > 0.5);

  const std::vector<float> theirs = InOnnxRuntime(model, data.test);
  REQUIRE(theirs.size() == ours.probabilities.size());
  CHECK(CountCorrect(theirs, data.test.labels) == ours.tally.correct);
  CHECK(LargestDifference(theirs, ours.probabilities) < 1e-5);

  TemporaryFolder folder;
  models::SaveModel(model, folder.path());
  const auto again = models::LoadModel(folder.path());
  const Predictions loaded = models::Predict(*again, data.test, {0, data.test.count});
  CHECK(loaded.probabilities == ours.probabilities);
}

}  // namespace
}  // namespace dtrun::testing
