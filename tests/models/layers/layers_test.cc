#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <vector>

#include "models/data/dataset.h"
#include "models/layers/activations.h"
#include "models/layers/conv2d.h"
#include "models/layers/cpu_kernels.h"
#include "models/layers/dense.h"
#include "models/layers/pooling.h"
#include "models/layers/sequential.h"
#include "models/train/gradient_tree.h"
#include "tests/models/image_step.h"
#include "tests/models/layers/reference_network.h"

namespace dtrun::models {
namespace {

using dtrun::testing::Conv;
using dtrun::testing::Drop;
using dtrun::testing::Fully;
using dtrun::testing::LayerText;
using dtrun::testing::MakeLayers;
using dtrun::testing::Place;
using dtrun::testing::Pool;
using dtrun::testing::ReferenceKeeps;
using dtrun::testing::ReferenceLoss;
using dtrun::testing::StridedConv;

constexpr uint64_t kSeed = 11, kStep = 3;
constexpr uint64_t kGlobalBatch = 9;

// A model with memory for its gradients, and all of its examples as one share.
struct Trained {
  Trained(
      const Images& data, const std::vector<LayerText>& network, int micro_batch,
      int micro_batches = 2)
      : images(data),
        model(
            {data.height, data.width, 1}, MakeLayers(network), {micro_batch, micro_batches, kSeed}),
        gradients(model.parameter_count()),
        examples(data.count) {
    float* gradient = gradients.data();
    for (Parameter& parameter : model.parameters()) {
      parameter.gradient.data = gradient;
      gradient += parameter.gradient.count;
    }
    std::iota(examples.begin(), examples.end(), 0);
  }

  Tally Compute(uint32_t first, uint32_t count) {
    const Share share{std::span(examples).subspan(first, count), first, kGlobalBatch, kStep};
    return ComputeGradients(model, images, share, [&](size_t i) { ready.push_back(i); });
  }

  std::vector<float> GradientList() const {
    return {gradients.data(), gradients.data() + gradients.count()};
  }

  const Images& images;
  Sequential model;
  FloatArray gradients;
  std::vector<uint32_t> examples;
  std::vector<size_t> ready;
};

// The sum of the losses of all images, in double precision.
double ReferenceSum(
    const Images& images, const std::vector<LayerText>& network,
    const std::vector<double>& parameters, bool training) {
  double sum = 0;
  const size_t pixels = images.pixels_per_image();
  for (uint32_t i = 0; i < images.count; ++i) {
    std::vector<double> example;
    for (size_t p = 0; p < pixels; ++p) example.push_back(images.pixels[i * pixels + p] / 255.0);
    sum += ReferenceLoss(
        {images.height, images.width, 1}, network, parameters, example, images.labels[i],
        {kSeed, kStep, i, training});
  }
  return sum;
}

std::vector<double> ParametersOf(Sequential& model) {
  std::vector<double> values;
  for (const Parameter& parameter : model.parameters()) {
    const auto* value = static_cast<const float*>(parameter.value.data);
    values.insert(values.end(), value, value + parameter.value.count);
  }
  return values;
}

// Biases start at zero, where the gradient of many ReLUs is ambiguous.
void RandomizeBiases(Sequential& model) {
  for (const Parameter& parameter : model.parameters()) {
    auto* value = static_cast<float*>(parameter.value.data);
    if (parameter.name.find("bias") == std::string::npos) continue;
    for (size_t i = 0; i < parameter.value.count; ++i)
      value[i] = 0.2f * float(std::sin(double(i) + 1));
  }
}

// Compares the gradient with central differences of the reference at a sample of parameters over
// all layers. Also compares the losses.
void CheckNetworkGradients(
    const Images& images, const std::vector<LayerText>& network, int micro_batch) {
  Trained trained(images, network, micro_batch);
  RandomizeBiases(trained.model);
  const Tally tally = trained.Compute(0, uint32_t(images.count));
  const std::vector<float> gradient = trained.GradientList();
  std::vector<double> parameters = ParametersOf(trained.model);
  CHECK(tally.examples == images.count);
  CHECK(tally.loss == Approx(ReferenceSum(images, network, parameters, true)).epsilon(1e-5));

  const double h = 1e-5;
  double difference = 0, norm = 0;
  const size_t stride = std::max<size_t>(parameters.size() / 300, 1) | 1;
  for (size_t i = 0; i < parameters.size(); i += stride) {
    const double value = parameters[i];
    parameters[i] = value + h;
    const double above = ReferenceSum(images, network, parameters, true);
    parameters[i] = value - h;
    const double below = ReferenceSum(images, network, parameters, true);
    parameters[i] = value;
    const double expected = (above - below) / (2 * h) / double(kGlobalBatch);
    CHECK(gradient[i] == Approx(expected).epsilon(1e-3).margin(1e-6));
    difference += std::pow(gradient[i] - expected, 2);
    norm += expected * expected;
  }
  CHECK(norm > 0);
  CHECK(std::sqrt(difference / norm) < 1e-5);
}

TEST_CASE("a dense layer's gradients agree with float64 differences") {
  CheckNetworkGradients(MadeUpImages(5, 4, 3, 6), {Fully(6, false)}, 5);
  CheckNetworkGradients(MadeUpImages(5, 4, 3, 6), {Fully(9, true), Fully(6, false)}, 2);
}

TEST_CASE("a convolution's gradients agree with float64 differences") {
  const Images images = MadeUpImages(5, 7, 6, 3);
  CheckNetworkGradients(images, {Conv(4, 3, false), Fully(3, false)}, 5);
  CheckNetworkGradients(images, {Conv(16, 3, true), Conv(32, 3, true), Fully(3, false)}, 2);
  CheckNetworkGradients(images, {Conv(5, 2, true), Conv(7, 3, true), Fully(3, false)}, 2);
}

TEST_CASE("a convolution's gradients agree with float64 differences for any stride and padding") {
  const Images images = MadeUpImages(4, 7, 6, 3);
  const auto check = [&](const Conv2DOptions& options) {
    CheckNetworkGradients(
        images, {StridedConv(16, 3, options), StridedConv(20, 3, options), Fully(3, false)}, 2);
  };
  check({.padding = Padding::Same()});
  check({.stride = 2, .padding = Padding::Same(), .activation = Activation::kRelu});
  check({.stride = 2, .padding = Padding::Pixels(1), .use_bias = false});
  check({.padding = Padding::Pixels(2), .activation = Activation::kRelu, .use_bias = false});
  CheckNetworkGradients(images, {StridedConv(5, 2, {.stride = 3}), Fully(3, false)}, 2);
  CheckNetworkGradients(images, {StridedConv(5, 1, {.stride = 2}), Fully(3, false)}, 2);
}

TEST_CASE("same padding divides the image by the stride with an odd pixel below and to the right") {
  CHECK(WindowOutput({7, 2, Padding::Same()}, {224, 15, 3}, 64) == Shape{112, 8, 64});
  CHECK(ExtentOf({7, 2, Padding::Same()}, 224).before == 2);
  CHECK(ExtentOf({7, 2, Padding::Same()}, 224).after == 3);
  CHECK(WindowOutput({7, 2, Padding::Pixels(3)}, {224, 15, 3}, 64) == Shape{112, 8, 64});
  CHECK(WindowOutput({3, 2, Padding::Valid()}, {7, 8, 3}, 1) == Shape{3, 3, 1});
  CHECK(ToString(Window{3, 2, Padding::Same()}) == "3x3 stride 2 same");
}

TEST_CASE("max pooling's gradients agree with float64 differences") {
  const Images images = MadeUpImages(5, 9, 11, 3);
  CheckNetworkGradients(images, {Pool(2), Fully(3, false)}, 2);
  CheckNetworkGradients(images, {Conv(16, 2, true), Pool(2), Fully(3, false)}, 2);
  CheckNetworkGradients(
      images, {Conv(16, 2, false), Pool(2), Conv(16, 2, true), Fully(3, false)}, 2);
  CheckNetworkGradients(images, {Conv(20, 2, true), Pool(2), Conv(3, 2, true), Fully(3, false)}, 2);
  CheckNetworkGradients(images, {Conv(6, 2, true), Pool(3), Fully(3, false)}, 2);
  CheckNetworkGradients(
      images, {Conv(32, 2, true), Pool(3), Conv(16, 1, true), Pool(2), Fully(3, false)}, 2);
}

TEST_CASE("gradients through dropout agree with float64 differences under the same mask") {
  const Images images = MadeUpImages(5, 7, 6, 3);
  CheckNetworkGradients(images, {Fully(40, true), Drop(0.5), Fully(3, false)}, 2);
  CheckNetworkGradients(
      images, {Conv(16, 3, true), Drop(0.25), Conv(20, 3, false), Drop(0.3), Fully(3, false)}, 2);
  CheckNetworkGradients(
      images, {Conv(16, 2, true), Pool(2), Drop(0.25), Conv(16, 2, true), Fully(3, false)}, 2);
  CheckNetworkGradients(
      images, {Drop(0.1), Conv(5, 2, true), Pool(2), Drop(0.25), Fully(3, false)}, 2);
}

TEST_CASE("network C's gradients agree with float64 differences") {
  CheckNetworkGradients(
      MadeUpImages(3, 12, 12, 10),
      {Conv(32, 3, true), Conv(64, 3, true), Pool(2), Drop(0.25), Fully(128, true), Drop(0.5),
       Fully(10, false)},
      2);
}

const std::vector<LayerText> kWithDropout = {Conv(16, 3, true), Pool(2),   Drop(0.25),
                                             Fully(20, true),   Drop(0.5), Fully(4, false)};

double RelativeDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(double(a[i]) - double(b[i]), 2);
    norm += double(b[i]) * double(b[i]);
  }
  return std::sqrt(difference / norm);
}

TEST_CASE("the split of a batch into chunks changes only rounding even with dropout") {
  const Images images = MadeUpImages(9, 10, 10, 4);
  Trained whole(images, kWithDropout, 9, 1);
  const double loss = whole.Compute(0, 9).loss;
  for (const auto& [micro_batch, micro_batches] :
       {std::pair{1, 1}, {2, 1}, {4, 1}, {1, 5}, {2, 2}, {4, 3}, {5, 2}}) {
    Trained cut(images, kWithDropout, micro_batch, micro_batches);
    CHECK(cut.Compute(0, 9).loss == Approx(loss).epsilon(1e-6));
    CHECK(RelativeDifference(cut.GradientList(), whole.GradientList()) < 1e-6);
  }
}

TEST_CASE("the gradients of shares add up to the gradient of the whole batch") {
  const Images images = MadeUpImages(9, 10, 10, 4);
  Trained whole(images, kWithDropout, 4);
  whole.Compute(0, 9);
  Trained part(images, kWithDropout, 3);
  std::vector<float> sum(part.gradients.count());
  for (const auto& [first, count] : {std::pair{0u, 4u}, {4u, 0u}, {4u, 5u}}) {
    part.Compute(first, count);
    Add(part.gradients.data(), sum.size(), sum.data());
  }
  CHECK(RelativeDifference(sum, whole.GradientList()) < 1e-6);
}

TEST_CASE("parameters are announced once after the last micro-batch with the last layer first") {
  const Images images = MadeUpImages(9, 10, 10, 4);
  Trained trained(images, kWithDropout, 4);
  trained.Compute(0, 9);
  CHECK(trained.ready == std::vector<size_t>{5, 4, 3, 2, 1, 0});
}

TEST_CASE("a share without examples announces zero gradients") {
  const Images images = MadeUpImages(9, 10, 10, 4);
  Trained trained(images, kWithDropout, 4);
  trained.Compute(0, 9);
  trained.ready.clear();
  CHECK(trained.Compute(0, 0).examples == 0);
  CHECK(trained.ready == std::vector<size_t>{5, 4, 3, 2, 1, 0});
  CHECK(trained.GradientList() == std::vector<float>(trained.gradients.count()));
}

TEST_CASE("dropout keeps its share and differs between steps and is off in evaluation") {
  int kept = 0, same = 0;
  for (size_t i = 0; i < 10000; ++i) {
    const bool now = ReferenceKeeps({kSeed, 0, 0, true}, 2, i, 0.25);
    kept += now;
    same += now == ReferenceKeeps({kSeed, 1, 0, true}, 2, i, 0.25);
  }
  CHECK(kept == Approx(7500).margin(150));  // 3.5 sigma
  CHECK(same == Approx(6250).margin(170));

  const Images images = MadeUpImages(9, 10, 10, 4);
  Trained trained(images, kWithDropout, 4);
  const double expected = ReferenceSum(images, kWithDropout, ParametersOf(trained.model), false);
  const Tally tally = Evaluate(trained.model, images, {0, 9});
  CHECK(tally.loss == Approx(expected).epsilon(1e-5));
  CHECK(tally.examples == 9);
}

TEST_CASE("equal seeds give equal initial weights within Glorot's limits") {
  Sequential one({10, 10, 1}, MakeLayers(kWithDropout), {4, 1, 1});
  Sequential again({10, 10, 1}, MakeLayers(kWithDropout), {16, 8, 1});
  Sequential other({10, 10, 1}, MakeLayers(kWithDropout), {4, 1, 2});
  CHECK(ParametersOf(one) == ParametersOf(again));
  CHECK(ParametersOf(one) != ParametersOf(other));
  const Parameter& kernel = one.parameters()[2];  // 4 * 4 * 16 inputs, 20 units
  CHECK(kernel.name == "layer3.dense.kernel");
  const auto* value = static_cast<const float*>(kernel.value.data);
  const auto [least, most] = std::minmax_element(value, value + kernel.value.count);
  const float limit = std::sqrt(6.0f / (256 + 20));
  CHECK(*least > -limit);
  CHECK(*most < limit);
  CHECK(*most - *least > 1.9f * limit);
}

TEST_CASE("a layer with an unfit input or setting is refused by name") {
  CHECK_THROWS_WITH(
      Sequential({4, 4, 1}, Layers(Conv2D(8, 3), Conv2D(8, 3)), {}),
      "layer 1 (conv2d 8 3x3) needs an input of at least 3x3, got 2x2x8");
  CHECK_THROWS_WITH(
      Sequential({4, 4, 1}, Layers(Conv2D(8, 3, {.stride = 0})), {}),
      "layer 0 (conv2d 8 3x3 stride 0) needs a stride of at least 1, got 0");
  CHECK_THROWS_WITH(
      Sequential({4, 4, 1}, Layers(Conv2D(8, 3, {.padding = Padding::Pixels(3)})), {}),
      "layer 0 (conv2d 8 3x3 padding 3) needs a padding from 0 to 2, got 3");
  CHECK_THROWS_WITH(
      Sequential({4, 1, 1}, Layers(MaxPool2D(2)), {}),
      "layer 0 (max_pool2d 2x2) needs an input of at least 2x2, got 4x1x1");
  CHECK_THROWS_WITH(
      Sequential({4, 1, 1}, Layers(Dropout(1)), {}),
      "layer 0 (dropout 1) needs a rate of at least 0 and below 1, got 1");
}

TEST_CASE("chunks and micro-batches are as few and as equal as their limits allow") {
  constexpr uint64_t kMiB = 1 << 20;
  CHECK(PlanChunks(1024, kMiB) == ChunkPlan{16, 8});
  CHECK(PlanChunks(129, kMiB) == ChunkPlan{13, 5});
  CHECK(PlanChunks(100, kMiB) == ChunkPlan{15, 7});
  CHECK(PlanChunks(5, kMiB) == ChunkPlan{5, 1});
  CHECK(PlanChunks(0, kMiB) == ChunkPlan{1, 1});
}

TEST_CASE("micro-batches follow the size of the second-level cache") {
  constexpr uint64_t kKiB = 1 << 10;
  CHECK(PlanChunks(1024, 256 * kKiB) == ChunkPlan{8, 16});
  CHECK(PlanChunks(1024, 512 * kKiB) == ChunkPlan{8, 16});
  CHECK(PlanChunks(1024, 1280 * kKiB) == ChunkPlan{16, 8});
  CHECK(PlanChunks(1024, 2048 * kKiB) == ChunkPlan{32, 4});
  CHECK(PlanChunks(1024, 8192 * kKiB) == ChunkPlan{32, 4});
  CHECK(PlanChunks(1024, 0) == ChunkPlan{16, 8});
}

}  // namespace
}  // namespace dtrun::models
