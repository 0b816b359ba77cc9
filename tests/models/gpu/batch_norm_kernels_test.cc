// Batch normalisation (models/gpu/batch_norm_kernels.cu) against its formulas in f64.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "models/gpu/layer_args.h"
#include "tests/models/gpu/kernel_rig.h"

namespace dtrun::testing {
namespace {

using namespace models;  // NOLINT: their names are the subject

// A batch normalisation in device memory, with moving averages 2 and 3.
struct NormRig {
  NormRig(const Typed& of_type, uint32_t of_channels)
      : type(of_type),
        channels(of_channels),
        gamma(MadeUp(channels, 3)),
        beta(MadeUp(channels, 4)),
        sums(channels) {}

  LayerNormalization normalization() const {
    return {mean.as<float>(), reciprocal.as<double>(), scale.as<float>(), offset.as<float>()};
  }
  void SumInputs(void* inputs, uint32_t pixels) const {
    RunKernel(
        "dtrun_layer_channel_sums_" + type.name, sums.shape,
        LayerChannelSumsArgs{
            inputs, totals.as<double>(), sums.partials.as<double>(), sums.counters.as<uint32_t>(),
            pixels, channels});
  }
  void UseSums(const double* sums_or_null) const {
    RunKernel(
        "dtrun_layer_batch_norm_statistics", 1,
        LayerStatisticsArgs{
            sums_or_null, gammas.as<float>(), betas.as<float>(), moving_mean.as<float>(),
            moving_variance.as<float>(), normalization(), channels, 0.75, 0.125});
  }
  Doubles Apply(void* inputs, uint32_t pixels, bool relu) const {
    const auto outputs = type.Zeros(pixels * channels);
    RunKernel(
        "dtrun_layer_batch_norm_" + type.name, 2,
        LayerBatchNormArgs{
            inputs, outputs.as<void>(), scale.as<float>(), offset.as<float>(), pixels, channels,
            relu ? 1u : 0u});
    return type.ToHost(outputs, pixels * channels);
  }
  void SumGradients(void* inputs, void* gradients, uint32_t pixels, bool relu) const {
    RunKernel(
        "dtrun_layer_batch_norm_gradient_sums_" + type.name, sums.shape,
        LayerGradientSumsArgs{
            inputs, gradients, normalization(), totals.as<double>(), sums.partials.as<double>(),
            sums.counters.as<uint32_t>(), pixels, channels, relu ? 1u : 0u});
  }
  void WriteParameterGradients(bool add) const {
    RunKernel(
        "dtrun_layer_batch_norm_parameter_gradients", 1,
        LayerNormGradientsArgs{
            totals.as<double>(), reciprocal.as<double>(), gamma_gradient.as<float>(),
            beta_gradient.as<float>(), channels, add ? 1u : 0u});
  }
  // Overwrites the inputs.
  Doubles InputGradient(
      void* inputs, void* gradients, uint32_t pixels, uint32_t all_pixels, bool relu) const {
    RunKernel(
        "dtrun_layer_batch_norm_factors", 1,
        LayerNormFactorsArgs{
            totals.as<double>(), gammas.as<float>(), normalization(), factors.as<float>(),
            channels});
    const auto of_inputs = type.Zeros(all_pixels * channels);
    RunKernel(
        "dtrun_layer_batch_norm_gradient_" + type.name, 2,
        LayerBatchNormGradientArgs{
            inputs, gradients, of_inputs.as<void>(), factors.as<float>(), scale.as<float>(),
            offset.as<float>(), pixels, all_pixels, channels, relu ? 1u : 0u});
    return type.ToHost(of_inputs, all_pixels * channels);
  }
  static std::vector<float> Values(const gpu::DeviceMemory& memory, uint32_t count) {
    return Download<float>(memory, count);
  }

  Typed type;
  uint32_t channels;
  Doubles gamma, beta;
  Sums sums;
  gpu::DeviceMemory gammas = Upload(Floats(gamma)), betas = Upload(Floats(beta));
  gpu::DeviceMemory moving_mean = Upload(std::vector<float>(channels, 2));
  gpu::DeviceMemory moving_variance = Upload(std::vector<float>(channels, 3));
  gpu::DeviceMemory mean = Upload(std::vector<float>(channels)), scale = Upload(Floats(gamma));
  gpu::DeviceMemory offset = Upload(Floats(gamma)), reciprocal = Upload(Doubles(channels));
  gpu::DeviceMemory gamma_gradient = Upload(Floats(gamma)), beta_gradient = Upload(Floats(gamma));
  gpu::DeviceMemory factors = Upload(std::vector<float>(3 * channels));
  gpu::DeviceMemory totals = Upload(Doubles(2 * channels + 1));
};

// The formulas of models/layers/batch_norm.cc for one channel, in f64.
struct ChannelOfNorm {
  double mean = 0, variance = 0, r = 0, gamma_gradient = 0, beta_gradient = 0;
  Doubles y, dx;

  ChannelOfNorm(const Doubles& x, Doubles dy, double gamma, double beta, bool relu) {
    const auto count = static_cast<double>(x.size());
    for (const double value : x) mean += value / count;
    for (const double value : x) variance += (value - mean) * (value - mean) / count;
    r = 1 / std::sqrt(variance + 0.125);
    for (size_t i = 0; i < x.size(); ++i) {
      y.push_back(gamma * r * (x[i] - mean) + beta);
      if (relu && y[i] <= 0) y[i] = dy[i] = 0;
      beta_gradient += dy[i];
      gamma_gradient += r * dy[i] * (x[i] - mean);
    }
    for (size_t i = 0; i < x.size(); ++i)
      dx.push_back(
          gamma * r * dy[i] - gamma * r * r * gamma_gradient / count * (x[i] - mean) -
          gamma * r * beta_gradient / count);
  }
};

TEST_CASE("a batch normalisation in training and its gradients match f64", "[layer_kernels]") {
  const Typed type = AnyType();
  const Sizes sizes = GENERATE(Sizes{4, 5, 7, 13}, Sizes{3, 1, 1, 1}, Sizes{3, 3, 3, 70});
  const bool relu = GENERATE(false, true);
  const uint32_t channels = sizes.channels, all_pixels = sizes.pixels();
  const uint32_t pixels = all_pixels / sizes.rows * (sizes.rows - 1);  // the last row is no example
  Doubles x = MadeUp(sizes.count(), 1);
  const Doubles dy = MadeUp(sizes.count(), 2);
  // A large mean costs no precision, because the sums are centered.
  for (double& value : x) value += type.name == "f32" ? 100 : 0;
  const NormRig rig(type, channels);
  Doubles y(pixels * channels), dx(sizes.count()), gammas, betas, means, variances;
  for (uint32_t c = 0; c < channels; ++c) {
    Doubles of_x, of_dy;
    for (uint32_t pixel = 0; pixel < pixels; ++pixel) {
      of_x.push_back(x[pixel * channels + c]);
      of_dy.push_back(dy[pixel * channels + c]);
    }
    const ChannelOfNorm channel(of_x, of_dy, rig.gamma[c], rig.beta[c], relu);
    for (uint32_t pixel = 0; pixel < pixels; ++pixel) {
      y[pixel * channels + c] = channel.y[pixel];
      dx[pixel * channels + c] = channel.dx[pixel];
    }
    gammas.push_back(2 * channel.gamma_gradient);
    betas.push_back(2 * channel.beta_gradient);
    means.push_back(0.75 * 2 + 0.25 * channel.mean);
    variances.push_back(0.75 * 3 + 0.25 * channel.variance);
  }
  const auto inputs = type.ToDevice(x), gradients = type.ToDevice(dy);
  rig.SumInputs(inputs.as<void>(), pixels);
  rig.UseSums(rig.totals.as<double>());
  CheckNear(NormRig::Values(rig.moving_mean, channels), means, 1e-6);
  CheckNear(NormRig::Values(rig.moving_variance, channels), variances, 1e-6);
  const double tolerance = std::max(type.tolerance, 1e-4);  // the offset contains the mean
  CheckNear(rig.Apply(inputs.as<void>(), pixels, relu), y, tolerance);
  rig.SumGradients(inputs.as<void>(), gradients.as<void>(), pixels, relu);
  rig.WriteParameterGradients(false);
  rig.WriteParameterGradients(true);
  CheckNear(NormRig::Values(rig.gamma_gradient, channels), gammas, 1e-4);
  CheckNear(NormRig::Values(rig.beta_gradient, channels), betas, 1e-5);
  CheckNear(
      rig.InputGradient(inputs.as<void>(), gradients.as<void>(), pixels, all_pixels, relu), dx,
      tolerance);
}

TEST_CASE("the sums of two ranks normalise as the sums of one", "[layer_kernels]") {
  const Typed type = AnyType();
  const uint32_t pixels = 30, channels = 13;
  const Doubles x = MadeUp(pixels * channels, 1);
  const auto all = type.ToDevice(x), first = type.ToDevice({x.begin(), x.begin() + 10 * channels});
  const auto second = type.ToDevice({x.begin() + 10 * channels, x.end()});
  const NormRig rig(type, channels);
  const auto sums_of = [&](const gpu::DeviceMemory& inputs, uint32_t count) {
    rig.SumInputs(inputs.as<void>(), count);
    return Download<double>(rig.totals, 2 * channels + 1);
  };
  Doubles sums = sums_of(first, 10);
  const Doubles others = sums_of(second, 20);
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += others[i];
  CheckNear(sums, sums_of(all, 30), 1e-6);
  CHECK(sums.back() == 30);
}

TEST_CASE("without a batch, a normalisation uses its moving averages", "[layer_kernels]") {
  const Typed type = AnyType();
  const uint32_t pixels = 7, channels = 13;
  const Doubles x = MadeUp(pixels * channels, 1);
  const auto inputs = type.ToDevice(x);
  const NormRig rig(type, channels);
  const bool empty = GENERATE(false, true);
  if (empty) rig.SumInputs(inputs.as<void>(), 0);
  rig.UseSums(empty ? rig.totals.as<double>() : nullptr);
  Doubles expected;
  for (uint32_t i = 0; i < pixels * channels; ++i)
    expected.push_back(
        rig.gamma[i % channels] * (x[i] - 2) / std::sqrt(3.125) + rig.beta[i % channels]);
  CheckNear(rig.Apply(inputs.as<void>(), pixels, false), expected, type.tolerance);
  CHECK(NormRig::Values(rig.moving_mean, channels) == std::vector<float>(channels, 2));
  CHECK(NormRig::Values(rig.moving_variance, channels) == std::vector<float>(channels, 3));
}

}  // namespace
}  // namespace dtrun::testing
