// bf16 keeps 8 bits, so a rounding is off by at most u = 2^-9 of the value. A gradient is rounded a
// few times per layer (activation, weights, gradient). Gradients of smooth networks with a few
// layers are therefore off by about 10 u.
//
// If a value is off by a share e, a ReLU may also change its side and a pooling window its winner.
// This happens to a share of about e of the values. Each of them gets an entirely different
// gradient, so the norm of the difference is sqrt(e).

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "models/data/dataset.h"
#include "models/layers/builder.h"
#include "models/layers/cpu_kernels.h"
#include "models/layers/sequential.h"
#include "models/optim/adam.h"
#include "tests/models/image_step.h"
#include "tests/models/layers/reference_network.h"

namespace dtrun::models {
namespace {

using dtrun::testing::Conv;
using dtrun::testing::Drop;
using dtrun::testing::Fully;
using dtrun::testing::LayerText;
using dtrun::testing::MakeLayers;
using dtrun::testing::Pool;

constexpr double kRounding = 1.0 / 512;
constexpr double kSmooth = 10 * kRounding;
const double kKinked = std::sqrt(10 * kRounding);

struct TrainedAs {
  TrainedAs(const Images& data, const std::vector<LayerText>& network, DType dtype, int micro_batch)
      : images(data),
        model(
            {data.height, data.width, 1}, MakeLayers(network),
            {micro_batch, 2, /*seed=*/11, dtype}),
        gradients(model.parameter_count()),
        examples(data.count) {
    float* gradient = gradients.data();
    for (Parameter& parameter : model.parameters()) {
      parameter.gradient.data = gradient;
      gradient += parameter.gradient.count;
    }
    std::iota(examples.begin(), examples.end(), 0);
  }

  Tally Compute(uint64_t step = 3) {
    return ComputeGradients(model, images, {examples, 0, images.count, step}, [](size_t) {});
  }

  const Images& images;
  Sequential model;
  FloatArray gradients;
  std::vector<uint32_t> examples;
};

double NormOf(const float* a, const float* b, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += std::pow(double{a[i]} - (b ? double{b[i]} : 0), 2);
  return std::sqrt(sum);
}

// Compares the loss, and the gradient of each parameter by itself.
void CheckAgainstF32(
    const Images& images, const std::vector<LayerText>& network, double tolerance) {
  if (!HasBf16()) {
    WARN("this CPU has no AVX512_BF16: a network in bf16 computes in f32");
    return;
  }
  TrainedAs f32(images, network, DType::kF32, 4), bf16(images, network, DType::kBF16, 4);
  REQUIRE(bf16.model.dtype() == DType::kBF16);
  const Tally expected = f32.Compute(), found = bf16.Compute();
  CHECK(found.examples == expected.examples);
  CHECK(found.loss == Approx(expected.loss).epsilon(8 * kRounding));
  CHECK(found.loss != expected.loss);
  for (size_t i = 0; i < f32.model.parameters().size(); ++i) {
    const Parameter &a = bf16.model.parameters()[i], &b = f32.model.parameters()[i];
    CAPTURE(b.name);
    const auto* x = static_cast<const float*>(a.gradient.data);
    const auto* y = static_cast<const float*>(b.gradient.data);
    const double norm = NormOf(y, nullptr, b.gradient.count);
    CHECK(norm > 0);
    CHECK(NormOf(x, y, b.gradient.count) / norm < tolerance);
  }
}

TEST_CASE("bf16 gradients of smooth networks match f32 except for rounding") {
  const Images images = MadeUpImages(9, 10, 11, 3);
  CheckAgainstF32(images, {Fully(9, false), Fully(3, false)}, kSmooth);
  CheckAgainstF32(images, {Conv(16, 3, false), Fully(3, false)}, kSmooth);
  CheckAgainstF32(
      images, {Conv(16, 3, false), Conv(32, 3, false), Fully(9, false), Fully(3, false)}, kSmooth);
  CheckAgainstF32(images, {Conv(5, 2, false), Conv(7, 3, false), Fully(3, false)}, kSmooth);
  CheckAgainstF32(
      images, {Conv(16, 3, false), Drop(0.25), Conv(20, 3, false), Drop(0.3), Fully(3, false)},
      kSmooth);
}

TEST_CASE("bf16 gradients after ReLUs and pooling match f32 except for changed sides") {
  const Images images = MadeUpImages(9, 10, 11, 3);
  CheckAgainstF32(images, {Fully(40, true), Drop(0.5), Fully(9, true), Fully(3, false)}, kKinked);
  CheckAgainstF32(
      images, {Conv(16, 3, true), Conv(32, 3, true), Fully(9, true), Fully(3, false)}, kKinked);
  CheckAgainstF32(images, {Conv(5, 2, true), Conv(7, 3, true), Fully(3, false)}, kKinked);
  CheckAgainstF32(images, {Conv(16, 3, true), Pool(2), Fully(8, true), Fully(3, false)}, kKinked);
  CheckAgainstF32(
      images, {Conv(16, 3, false), Pool(2), Conv(16, 2, true), Fully(3, false)}, kKinked);
  CheckAgainstF32(images, {Conv(20, 2, true), Pool(2), Conv(3, 2, true), Fully(3, false)}, kKinked);
  CheckAgainstF32(images, {Conv(6, 2, true), Pool(3), Fully(3, false)}, kKinked);
  CheckAgainstF32(
      MadeUpImages(16, 12, 12, 10),
      {Conv(32, 3, true), Conv(64, 3, true), Pool(2), Drop(0.25), Fully(128, true), Drop(0.5),
       Fully(10, false)},
      kKinked);
}

// Each class has its own bright bar over noise.
Images Bars(uint64_t count, int classes) {
  Images images = MadeUpImages(count, 12, 12, classes);
  for (uint64_t i = 0; i < count; ++i) {
    uint8_t* image = images.pixels.data() + i * 144;
    for (int p = 0; p < 144; ++p) image[p] = uint8_t(image[p] / 3);
    for (int column = 0; column < 12; ++column) image[12 * (2 * images.labels[i]) + column] = 255;
  }
  return images;
}

TEST_CASE("training in bf16 converges like training in f32") {
  const Images images = Bars(60, 5);
  const std::vector<LayerText> network = {
      Conv(16, 3, true), Pool(2), Fully(32, true), Drop(0.25), Fully(5, false)};
  double first = 0, last[2];
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    TrainedAs trained(images, network, dtype, 16);
    Adam adam(trained.model.parameters(), {.learning_rate = 3e-3});
    for (uint64_t step = 0; step < 40; ++step) {
      const double loss = trained.Compute(step).mean_loss();
      if (step == 0) first = loss;
      adam.Step();
    }
    trained.model.PrepareWeights();
    const Tally tally = Evaluate(trained.model, images, {0, images.count});
    last[dtype == DType::kBF16] = tally.mean_loss();
    CHECK(tally.accuracy() == 1);
  }
  CHECK(last[0] < 0.1 * first);
  CHECK(last[1] < 0.1 * first);
}

float FloatOf(Bf16 value) {
  const uint32_t bits = uint32_t{value} << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

TEST_CASE("a scaled bf16 is rounded to nearest with ties to even") {
  // (1 + 2^-7) * 1.5 is 1.51171875, halfway between 1.5078125 and 1.515625.
  Bf16 values[] = {0x3f81, 0x3f80, 0xbf81, 0x7f80, 0x7fc0, 0x3f81};
  const uint8_t keep[] = {1, 1, 1, 1, 1, 0};
  ScaleKept(keep, 6, 1.5f, values);
  CHECK(FloatOf(values[0]) == 1.515625f);
  CHECK(FloatOf(values[1]) == 1.5f);
  CHECK(FloatOf(values[2]) == -FloatOf(values[0]));
  CHECK(std::isinf(FloatOf(values[3])));
  CHECK(std::isnan(FloatOf(values[4])));
  CHECK(FloatOf(values[5]) == 0);
}

TEST_CASE("a network computes in f32 or bf16") {
  CHECK_THROWS_WITH(
      Sequential({4, 4, 1}, MakeLayers({Fully(3, false)}), {4, 1, 1, DType::kF64}),
      "a network computes in f32 or bf16, got f64");
}

}  // namespace
}  // namespace dtrun::models
