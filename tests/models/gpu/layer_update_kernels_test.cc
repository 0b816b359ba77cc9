// The kernels over flat arrays (models/gpu/layer_update_kernels.cu) against f64, and the updates
// against the CPU.

#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "models/gpu/layer_args.h"
#include "models/optim/update_rules.h"
#include "tests/models/gpu/kernel_rig.h"

namespace dtrun::testing {
namespace {

using namespace models;  // NOLINT: their names are the subject

// The flat arrays of one parameter. The values have many bits, so that each operation rounds.
struct UpdateCase {
  uint64_t count = GENERATE(1u, 1000u);
  std::vector<float> gradient = Values(1), m = Values(2), v = Values(3), value = Values(4);
  gpu::DeviceMemory gradients = Upload(gradient), of_m = Upload(m);
  gpu::DeviceMemory of_v, of_values = Upload(value);

  UpdateCase() {
    for (float& each : v) each = std::abs(each);
    of_v = Upload(v);
  }
  std::vector<float> Values(uint32_t salt) const {
    std::vector<float> values;
    for (const double each : MadeUp(count, salt)) values.push_back(static_cast<float>(each / 3));
    return values;
  }
  bool HaveBits(const gpu::DeviceMemory& got, const std::vector<float>& expected) const {
    return Download<float>(got, count) == expected;
  }
  void CheckRounded(const gpu::DeviceMemory& got, const std::vector<float>& expected) const {
    CheckNear(Download<float>(got, count), Doubles(expected.begin(), expected.end()), 1e-6);
  }
};

TEST_CASE("a penalty adds scaled values", "[layer_kernels]") {
  const UpdateCase of;
  Doubles expected;
  for (size_t i = 0; i < of.count; ++i) {
    const auto value = static_cast<double>(of.value[i]);
    expected.push_back(static_cast<double>(of.gradient[i]) + 0.375 * value);
  }
  RunKernel(
      "dtrun_layer_axpy", 2,
      LayerAxpyArgs{of.of_values.as<float>(), of.gradients.as<float>(), of.count, 0.375f});
  CheckNear(Download<float>(of.gradients, of.count), expected, 1e-6);
}

TEST_CASE("Adam on a GPU matches the CPU", "[layer_kernels]") {
  UpdateCase of;
  const AdamFactors f{
      .rate = 0.013f, .m_share = 0.1f, .v_share = 0.001f, .epsilon = 1e-7f, .decay = 0.0007f};
  RunKernel(
      "dtrun_layer_adam", 2,
      LayerAdamArgs{
          of.gradients.as<float>(), of.of_m.as<float>(), of.of_v.as<float>(),
          of.of_values.as<float>(), of.count, f.rate, f.m_share, f.v_share, f.epsilon, f.decay});
  UpdateAdam(of.gradient.data(), of.count, f, of.m.data(), of.v.data(), of.value.data());
  of.CheckRounded(of.of_m, of.m);
  of.CheckRounded(of.of_v, of.v);
  of.CheckRounded(of.of_values, of.value);
}

TEST_CASE("gradient descent on a GPU has the bits of the CPU", "[layer_kernels]") {
  UpdateCase of;
  const bool momentum = GENERATE(false, true), nesterov = GENERATE(false, true);
  const DescentFactors f{.rate = 0.013f, .momentum = 0.9f, .decay = 0.0007f, .nesterov = nesterov};
  RunKernel(
      momentum ? "dtrun_layer_descend_with_momentum" : "dtrun_layer_descend", 2,
      LayerDescentArgs{
          of.gradients.as<float>(), momentum ? of.of_m.as<float>() : nullptr,
          of.of_values.as<float>(), of.count, f.rate, f.momentum, f.decay, nesterov ? 1u : 0u});
  if (momentum) {
    DescendWithMomentum(of.gradient.data(), of.count, f, of.m.data(), of.value.data());
    CHECK(of.HaveBits(of.of_m, of.m));
  } else {
    Descend(of.gradient.data(), of.count, f, of.value.data());
  }
  CHECK(of.HaveBits(of.of_values, of.value));
}

TEST_CASE("Lamb on a GPU matches the CPU", "[layer_kernels]") {
  UpdateCase of;
  const bool adapts = GENERATE(true, false);
  const LambFactors f{
      .m_share = 0.1f,
      .v_share = 0.001f,
      .m_correction = 3.7f,
      .v_correction = 333.5f,
      .epsilon = 1e-6f,
      .decay = 0.01f};
  const LayerLambRule rule{f.m_share,      f.v_share, f.m_correction,
                           f.v_correction, f.epsilon, f.decay};
  const auto squares = Upload(Doubles(2)), partials = Upload(Doubles(2 * 3));
  const auto counter = Upload(std::vector<uint32_t>{0});
  RunKernel(
      "dtrun_layer_lamb_moments", 3,
      LayerLambMomentsArgs{
          of.gradients.as<float>(), of.of_m.as<float>(), of.of_v.as<float>(),
          of.of_values.as<float>(), squares.as<double>(), partials.as<double>(),
          counter.as<uint32_t>(), of.count, rule});
  const SquaredNorms norms =
      UpdateLambMoments(of.gradient.data(), of.count, f, of.m.data(), of.v.data(), of.value.data());
  of.CheckRounded(of.of_m, of.m);
  of.CheckRounded(of.of_v, of.v);
  const Doubles got = Download<double>(squares, 2);
  CHECK(got[0] == Approx(norms.update).epsilon(1e-6));
  CHECK(got[1] == Approx(norms.value).epsilon(1e-12));
  RunKernel(
      "dtrun_layer_lamb_apply", 2,
      LayerLambApplyArgs{
          of.of_m.as<float>(), of.of_v.as<float>(), of.of_values.as<float>(),
          adapts ? squares.as<double>() : nullptr, of.count, 0.013, rule});
  const double ratio = adapts ? std::sqrt(got[1] / got[0]) : 1;
  ApplyLamb(
      of.m.data(), of.v.data(), of.count, f, static_cast<float>(0.013 * ratio), of.value.data());
  of.CheckRounded(of.of_values, of.value);
}

}  // namespace
}  // namespace dtrun::testing
