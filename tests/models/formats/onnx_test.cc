// Networks exported to ONNX. ONNX's own checker checks them, and ONNX Runtime runs them.

#include "models/formats/onnx/onnx.h"

#include <dtrun/error.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "models/layers/activations.h"
#include "models/layers/batch_norm.h"
#include "models/layers/pooling.h"
#include "models/networks/network.h"
#include "tests/support/json.h"
#include "tests/support/python.h"

namespace dtrun::models {
namespace {

using nlohmann::json;
using testing::ParseJson;
using testing::TemporaryFolder;

constexpr SequentialOptions kOptions = {.micro_batch = 4, .micro_batches = 4, .seed = 3};

void WriteFloats(const std::string& path, const std::vector<float>& values) {
  std::ofstream(path, std::ios::binary)
      .write(
          reinterpret_cast<const char*>(values.data()),
          std::streamsize(values.size() * sizeof(float)));
}

std::vector<float> ReadFloats(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(stream), {});
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

// (images, height, width, channels)
std::vector<float> RandomImages(const Shape& shape, size_t count) {
  std::mt19937 generator(7);
  std::uniform_real_distribution<float> uniform(0, 1);
  std::vector<float> images(count * shape.count());
  for (float& value : images) value = uniform(generator);
  return images;
}

std::vector<float> ChannelsFirst(const std::vector<float>& images, const Shape& shape) {
  std::vector<float> turned(images.size());
  const size_t pixels = shape.pixels(), channels = size_t(shape.channels);
  for (size_t i = 0; i < images.size(); ++i) {
    const size_t image = i / shape.count(), pixel = i % shape.count() / channels, c = i % channels;
    turned[image * shape.count() + c * pixels + pixel] = images[i];
  }
  return turned;
}

// Changes every value, so that an error in a bias, mean or variance shows.
void RandomiseParameters(Sequential& model) {
  std::mt19937 generator(11);
  std::normal_distribution<float> normal(0, 0.1f);
  for (Parameter& parameter : model.parameters()) {
    auto* values = static_cast<float*>(parameter.value.data);
    for (uint64_t i = 0; i < parameter.value.count; ++i) values[i] += normal(generator);
  }
  for (const NamedBuffer& buffer : model.buffers()) {
    auto* values = static_cast<float*>(buffer.buffer.data);
    for (uint64_t i = 0; i < buffer.buffer.count; ++i) values[i] += std::abs(normal(generator));
  }
}

std::vector<float> OurOutputs(Sequential& model, const std::vector<float>& images) {
  const size_t pixels = model.input_shape().count(), chunk = size_t(model.chunk());
  std::vector<float> outputs;
  model.PrepareWeights();
  for (size_t done = 0; done < images.size() / pixels; done += chunk) {
    const size_t count = std::min(chunk, images.size() / pixels - done);
    std::copy_n(images.begin() + ptrdiff_t(done * pixels), count * pixels, model.input());
    model.Forward(Pass{}, int(count));
    outputs.insert(outputs.end(), model.output(), model.output() + count * model.classes());
  }
  return outputs;
}

void ApplySoftmax(std::vector<float>& rows, size_t columns) {
  for (size_t begin = 0; begin < rows.size(); begin += columns) {
    const auto first = rows.begin() + ptrdiff_t(begin), last = first + ptrdiff_t(columns);
    const float largest = *std::max_element(first, last);
    double sum = 0;
    for (auto x = first; x != last; ++x) sum += std::exp(double(*x) - double(largest));
    for (auto x = first; x != last; ++x) *x = float(std::exp(double(*x) - double(largest)) / sum);
  }
}

struct Ran {
  json model;
  std::vector<float> outputs;
};

Ran RunInOnnxRuntime(
    Sequential& model, const std::vector<float>& images, const OnnxOptions& options) {
  TemporaryFolder folder;
  const std::string onnx = folder.path() + "/model.onnx";
  const std::string in = folder.path() + "/in", out = folder.path() + "/out";
  ExportOnnx(model, onnx, options);
  const Shape& shape = model.input_shape();
  WriteFloats(in, ChannelsFirst(images, shape));
  std::string sizes = std::to_string(shape.channels);
  if (shape.pixels() > 1)
    sizes += "x" + std::to_string(shape.height) + "x" + std::to_string(shape.width);
  const auto result =
      testing::RunPython({"tests/models/formats/run_onnx.py", onnx, in, sizes, out});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  return {ParseJson(result.out), ReadFloats(out)};
}

double LargestRelativeDifference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(double(a[i]) - double(b[i])) / std::abs(double(b[i])));
  return largest;
}

// Checks that ONNX Runtime computes our probabilities for random images.
json CheckAgainstOurs(Sequential& model, const OnnxOptions& options = {}) {
  RandomiseParameters(model);
  const std::vector<float> images = RandomImages(model.input_shape(), 33);
  std::vector<float> ours = OurOutputs(model, images);
  ApplySoftmax(ours, model.classes());
  const Ran ran = RunInOnnxRuntime(model, images, options);
  CHECK(LargestRelativeDifference(ran.outputs, ours) < 1e-5);
  return ran.model;
}

TEST_CASE("ONNX Runtime computes network C's probabilities in every operator set") {
  if (testing::PythonIsMissing()) return;
  Sequential model({28, 28, 1}, NetworkC(10), kOptions);
  const int opset = GENERATE(13, 14, 15, 16, 17);
  const json exported = CheckAgainstOurs(model, {.opset = opset});
  CHECK(exported["ir"] == 8);
  CHECK(exported["opset"] == opset);
  CHECK(exported["inputs"] == json({{"input", {"batch", 1, 28, 28}}}));
  CHECK(exported["outputs"] == json({{"probabilities", {"batch", 10}}}));
  CHECK(std::count(exported["ops"].begin(), exported["ops"].end(), "Conv") == 2);
}

TEST_CASE("images of several channels are transposed at the input and where they are flattened") {
  if (testing::PythonIsMissing()) return;
  Sequential model({9, 7, 3}, Layers(Conv2D(5, 3, Activation::kRelu), Dense(6)), kOptions);
  const json exported = CheckAgainstOurs(model);
  CHECK(exported["inputs"]["input"] == json{"batch", 3, 9, 7});
  Sequential straight({5, 4, 3}, Layers(Dense(6, Activation::kRelu), Dense(4)), kOptions);
  CheckAgainstOurs(straight);
}

TEST_CASE("ONNX Runtime computes the probabilities of networks A and B and D and mlp") {
  if (testing::PythonIsMissing()) return;
  const std::string name = GENERATE("A", "B", "D", "mlp");
  Network network = NetworkByName(name);
  Sequential model(network.input, std::move(network.layers), kOptions);
  CheckAgainstOurs(model);
}

TEST_CASE("ONNX Runtime computes the probabilities of residual blocks with batch normalization") {
  if (testing::PythonIsMissing()) return;
  Sequential model({32, 32, 3}, ResNet({.blocks = {1, 2}, .width = 8, .classes = 5}), kOptions);
  const json exported = CheckAgainstOurs(model);
  CHECK(std::count(exported["ops"].begin(), exported["ops"].end(), "Add") == 3);
  CHECK(std::count(exported["ops"].begin(), exported["ops"].end(), "Transpose") == 0);
}

TEST_CASE("ONNX Runtime computes the probabilities of pooling and reshape and softmax layers") {
  if (testing::PythonIsMissing()) return;
  const Padding padding = GENERATE(Padding::Same(), Padding::Pixels(1), Padding::Valid());
  Sequential model(
      {11, 9, 4},
      Layers(
          MaxPool2D({.size = 3, .stride = 2, .padding = padding}),
          AveragePool2D({.size = 2, .stride = 1, .padding = Padding::Same()}), Flatten(), Dense(36),
          Relu(), Reshape({3, 4, 3}), Conv2D(5, 2), BatchNorm(), GlobalAveragePool2D(), Dense(4)),
      kOptions);
  CheckAgainstOurs(model);

  Sequential ends({1, 1, 6}, Layers(Dense(4), Softmax()), kOptions);
  const std::vector<float> images = RandomImages(ends.input_shape(), 5);
  const Ran ran = RunInOnnxRuntime(ends, images, {});
  CHECK(LargestRelativeDifference(ran.outputs, OurOutputs(ends, images)) < 1e-5);
  CHECK(std::count(ran.model["ops"].begin(), ran.model["ops"].end(), "Softmax") == 1);
}

TEST_CASE("strides match in ONNX Runtime and odd padding has its extra pixel after the image") {
  if (testing::PythonIsMissing()) return;
  const Padding padding = GENERATE(Padding::Same(), Padding::Pixels(1), Padding::Valid());
  const int stride = GENERATE(1, 2, 3);
  Sequential model(
      {10, 7, 3},
      Layers(
          Conv2D(5, 3, {.stride = stride, .padding = padding, .activation = Activation::kRelu}),
          Conv2D(4, 2, {.padding = Padding::Same(), .use_bias = false}), Dense(6)),
      kOptions);
  CheckAgainstOurs(model);
}

TEST_CASE("a network without images has flat inputs and may export its logits") {
  if (testing::PythonIsMissing()) return;
  Sequential model({1, 1, 20}, Layers(Dense(8, Activation::kRelu), Dense(3)), kOptions);
  const json exported = CheckAgainstOurs(model);
  CHECK(exported["inputs"]["input"] == json{"batch", 20});
  const std::vector<float> images = RandomImages(model.input_shape(), 5);
  const Ran ran = RunInOnnxRuntime(model, images, {.probabilities = false});
  CHECK(ran.model["outputs"] == json({{"output", {"batch", 3}}}));
  const std::vector<float> ours = OurOutputs(model, images);
  for (size_t i = 0; i < ours.size(); ++i) CHECK(ran.outputs[i] == Approx(ours[i]).epsilon(1e-4));
}

class Unknown : public Dropout {
 public:
  using Dropout::Dropout;
  std::string kind() const override { return "unknown"; }
};

TEST_CASE("a layer without an ONNX converter is refused by name unless a converter is given") {
  Sequential model({4, 4, 1}, Layers(Dense(5), Unknown(0.5), Dense(2)), kOptions);
  CHECK_THROWS_WITH(
      ToOnnx(model),
      Catch::StartsWith("layer 1 (dropout 0.5) has no counterpart in ONNX, expected one of the "
                        "kinds average_pool2d, batch_norm, conv2d, "));
  CHECK_THROWS_WITH(ToOnnx(model, {.opset = 12}), "ONNX operator set 12, expected 13 to 17");
  if (testing::PythonIsMissing()) return;
  const OnnxConverter same = [](const OnnxLayer&, const OnnxValue& input, OnnxGraph&) {
    return input;
  };
  CheckAgainstOurs(model, {.converters = {{"unknown", same}}});
}

TEST_CASE("a failed export leaves no file behind") {
  TemporaryFolder folder;
  Sequential model({4, 4, 1}, Layers(Dense(2)), kOptions);
  CHECK_THROWS_WITH(
      ExportOnnx(model, folder.path() + "/none/model.onnx"),
      folder.path() + "/none/model.onnx: cannot be written: No such file or directory");
  CHECK(folder.Entries().empty());
}

}  // namespace
}  // namespace dtrun::models
