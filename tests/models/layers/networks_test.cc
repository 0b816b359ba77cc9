// Networks by name and their sizes, and a ResNet that is small enough to train in a test.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "bench/model_shapes.h"
#include "models/networks/network.h"
#include "models/optim/sgd.h"
#include "tests/models/layers/gradient_check.h"

namespace dtrun::models {
namespace {

Sequential Build(Network network) {
  return Sequential(
      network.input, std::move(network.layers), {.micro_batch = 2, .micro_batches = 1, .seed = 1});
}

TEST_CASE("networks have the documented parameters and inputs and recipes") {
  struct Known {
    std::string name, description;
    size_t parameters;
  };
  const Known known[] = {
      {"A",
       "conv2d 32 3x3 relu, max_pool2d 2x2, conv2d 64 3x3 relu, max_pool2d 2x2, dense 64 relu, "
       "dense 10",
       121930},
      {"B", "conv2d 32 3x3 relu, max_pool2d 2x2, dense 64 relu, dense 10", 347146},
      {"C",
       "conv2d 32 3x3 relu, conv2d 64 3x3 relu, max_pool2d 2x2, dropout 0.25, dense 128 relu, "
       "dropout 0.5, dense 10",
       1199882},
      {"mlp", "flatten, dense 128 relu, dropout 0.2, dense 10", 101770}};
  for (const Known& expected : known) {
    INFO(expected.name);
    const Network network = NetworkByName(expected.name);
    CHECK(network.name == expected.name);
    CHECK(network.input == Shape{28, 28, 1});
    Sequential model = Build(NetworkByName(expected.name));
    CHECK(model.parameter_count() == expected.parameters);
    CHECK(model.classes() == 10);
    CHECK(model.description() == expected.description);
  }
  CHECK(NetworkByName("D").input == Shape{1, 1, 784});
  Sequential d = Build(NetworkByName("D"));
  CHECK(d.parameter_count() == 2770634);
  CHECK(d.parameters()[0].name == "layer1.conv2d.kernel");

  const Recipe a = NetworkByName("A").recipe, b = NetworkByName("B").recipe;
  CHECK((a.optimizer == "adam" && a.epochs == 10 && a.batch_size == 64));
  CHECK((b.optimizer == "adam" && b.epochs == 12 && b.batch_size == 64));
  CHECK(b.RateOfEpoch(2) == 1e-3);
  CHECK(b.RateOfEpoch(3) == 1e-4);
  CHECK(b.RateOfEpoch(6) == 1e-4);
  CHECK(b.RateOfEpoch(7) == 1e-5);
  CHECK(b.RateOfEpoch(11) == 1e-5);
  const Recipe recipe = NetworkByName("D").recipe;
  CHECK((recipe.optimizer == "sgd" && recipe.RateOfEpoch(0) == 1e-3));
  CHECK((recipe.epochs == 3 && recipe.steps_per_epoch == 70));
}

TEST_CASE("every network name works for other images and classes") {
  for (const std::string& name : NetworkNames()) {
    INFO(name);
    Sequential model = Build(NetworkByName(name, {.classes = 7, .image = 40}));
    CHECK(model.classes() == 7);
    CHECK(model.inputs() % 1600 == 0);
  }
}

TEST_CASE("an unknown network or an unsupported option is a one-line error") {
  CHECK_THROWS_WITH(
      NetworkByName("resnet"),
      "network 'resnet' is not known, expected one of A, B, C, D, mlp, resnet18, resnet50");
  CHECK_THROWS_WITH(
      NetworkByName("A", {.synchronized = true}),
      "network A: has no batch normalisation that could be synchronised");
  CHECK_THROWS_WITH(
      Build(NetworkByName("A", {.image = 8})),
      "layer 3 (max_pool2d 2x2) needs an input of at least 2x2, got 64");
}

TEST_CASE("a network that needs the whole share gets the share as one chunk") {
  const auto chunk = [](const std::string& name, uint64_t share) {
    const SequentialOptions options = OptionsFor(NetworkByName(name), share, 5);
    CHECK(options.seed == 5);
    return options.micro_batch * options.micro_batches;
  };
  CHECK(chunk("C", 1024) == 128);
  CHECK(chunk("C", 20) == 32);
  CHECK(chunk("C", 3) == 3);
  CHECK(chunk("C", 0) == 1);
  CHECK(chunk("resnet50", 1024) == 1024);
  CHECK(chunk("resnet50", 20) == 32);
}

TEST_CASE("ResNet-50 has the 161 parameters of gradient_perf in the same order") {
  const std::vector<bench::Shape> expected = bench::ResNet50();
  Sequential model = Build(NetworkByName("resnet50", {.image = 32}));
  std::vector<uint64_t> counts, expected_counts;
  for (const Parameter& parameter : model.parameters()) counts.push_back(parameter.value.count);
  for (const bench::Shape& shape : expected) expected_counts.push_back(shape.count);
  CHECK(counts == expected_counts);
  CHECK(counts.size() == 161);
  CHECK(model.parameter_count() == 25557032);
  CHECK(model.buffers().size() == 106);  // two per normalisation
}

TEST_CASE("ResNet-18 is the version for small images without bottlenecks") {
  const Network network = NetworkByName("resnet18");
  CHECK(network.input == Shape{32, 32, 3});
  CHECK(network.needs_whole_share);
  Sequential model = Build(NetworkByName("resnet18"));
  CHECK(model.parameter_count() == 11173962);
  CHECK(model.parameters().size() == 62);
  CHECK(model.buffers().size() == 40);
  CHECK(model.classes() == 10);
}

// Kernels are He-normal, and the last gamma of each block is 0.
TEST_CASE("ResNet-50 starts with the initial values of the paper on large minibatches") {
  Sequential model = Build(NetworkByName("resnet50", {.image = 32}));
  const auto value = [&](size_t i) {
    return static_cast<const float*>(model.parameters()[i].value.data);
  };
  const Parameter& kernel = model.parameters()[6];  // 3 x 3, 64 to 64
  REQUIRE(kernel.value.count == 9 * 64 * 64);
  double sum = 0, squares = 0;
  for (size_t i = 0; i < kernel.value.count; ++i) {
    sum += value(6)[i];
    squares += std::pow(double(value(6)[i]), 2);
  }
  const double variance = 2.0 / (9 * 64), count = double(kernel.value.count);
  CHECK(sum / count == Approx(0).margin(4 * std::sqrt(variance / count)));
  CHECK(squares / count == Approx(variance).epsilon(4 * std::sqrt(2 / count)));
  CHECK(model.parameters()[10].name == "layer3.residual.main5.batch_norm.gamma");
  CHECK(value(10)[0] == 0);
  CHECK(value(7)[0] == 1);
}

// Draws 5 x 5 coloured pixels in one of four quarters.
void Draw(int example, float* image, int edge) {
  const int corner = example % 4, top = corner / 2 * edge / 2, left = corner % 2 * edge / 2;
  std::fill_n(image, edge * edge * 3, 0.0f);
  for (int h = 0; h < 5; ++h) {
    for (int w = 0; w < 5; ++w) {
      float* pixel = image + ((top + 2 + h) * edge + left + 2 + (w + example) % 7) * 3;
      for (int c = 0; c < 3; ++c) pixel[c] = float(std::cos(example + c + h));
    }
  }
}

TEST_CASE("a small ResNet learns the position of a blob and finds it in evaluation") {
  constexpr int kExamples = 16, kEdge = 32;
  ResNetOptions options;
  options.blocks = {1, 1};
  options.width = 8;
  options.classes = 4;
  dtrun::testing::CheckedNetwork network({kEdge, kEdge, 3}, ResNet(options), kExamples, {4, 4, 3});
  Sgd sgd(network.model().parameters(), {.learning_rate = 0.05, .momentum = 0.9});
  network.SetInputs([&](int i, float* image) { Draw(i, image, kEdge); });
  const double before = network.Train();
  double after = 0;
  for (int step = 0; step < 60; ++step) {
    sgd.Step();
    after = network.Train();
  }
  CHECK(before > kExamples * 0.8);
  CHECK(after < kExamples * 0.1);
  network.Forward(false);
  const std::vector<float> outputs = network.outputs();
  int right = 0;
  for (int i = 0; i < kExamples; ++i) {
    const float* logits = outputs.data() + 4 * i;
    right += std::max_element(logits, logits + 4) - logits == i % 4;
  }
  CHECK(right >= kExamples - 1);
}

}  // namespace
}  // namespace dtrun::models
