// LARS and LAMB, which use the norms of each layer.

#include <memory>

#include "models/optim/lamb.h"
#include "models/optim/lars.h"
#include "tests/models/optim/problem.h"

namespace dtrun::models {
namespace {

TEST_CASE("LARS follows its formula in float64") {
  const bool nesterov = GENERATE(false, true);
  Problem problem;
  Lars lars(
      problem.parameters, {.learning_rate = 2,
                           .momentum = 0.9,
                           .nesterov = nesterov,
                           .weight_decay = 0.1,
                           .trust_coefficient = 0.01});
  Doubles v(5);
  CheckAgainstDouble(problem, lars, [&](Doubles& values, const Doubles& gradients, int) {
    const Doubles before = values;
    for (size_t i = 0; i < 5; ++i) {
      const double value = NormAround(before, int(i)), gradient = NormAround(gradients, int(i));
      const double decay = i < 3 ? 0.1 : 0;
      const double ratio = i < 3 ? 0.01 * value / (gradient + decay * value) : 1;
      const double change = 2 * ratio * (gradients[i] + decay * before[i]);
      v[i] = 0.9 * v[i] - change;
      values[i] += nesterov ? 0.9 * v[i] - change : v[i];
    }
  });
}

TEST_CASE("LAMB follows its formula in float64") {
  Problem problem;
  Lamb lamb(problem.parameters, {.learning_rate = 0.02, .weight_decay = 0.1});
  Doubles m(5), v(5);
  CheckAgainstDouble(problem, lamb, [&](Doubles& values, const Doubles& gradients, int t) {
    Doubles update(5);
    const Doubles before = values;
    for (size_t i = 0; i < 5; ++i) {
      m[i] = 0.9 * m[i] + 0.1 * gradients[i];
      v[i] = 0.999 * v[i] + 0.001 * gradients[i] * gradients[i];
      update[i] =
          m[i] / (1 - std::pow(0.9, t)) / (std::sqrt(v[i] / (1 - std::pow(0.999, t))) + 1e-6) +
          (i < 3 ? 0.1 : 0) * before[i];
    }
    for (size_t i = 0; i < 5; ++i) {
      const double ratio = i < 3 ? NormAround(before, int(i)) / NormAround(update, int(i)) : 1;
      values[i] -= 0.02 * ratio * update[i];
    }
  });
}

// The size is no multiple of the kernels' blocks, so that their sums have a remainder.
TEST_CASE("LAMB's first step moves a layer by the learning rate times its norm") {
  std::vector<float> value(1003), gradient(1003);
  double before = 0, moved = 0;
  for (size_t i = 0; i < value.size(); ++i) {
    value[i] = float(std::sin(double(i)));
    gradient[i] = float(std::cos(double(i)));
    before += double(value[i]) * double(value[i]);
  }
  const std::vector<float> start = value;
  std::vector<Parameter> parameters{
      {"kernel", Buffer(value.data(), value.size()), Buffer(gradient.data(), gradient.size())}};
  Lamb lamb(parameters, {.learning_rate = 0.25, .weight_decay = 0});
  lamb.Step();
  for (size_t i = 0; i < value.size(); ++i) moved += std::pow(double(value[i]) - start[i], 2);
  CHECK(std::sqrt(moved) == Approx(0.25 * std::sqrt(before)).epsilon(1e-5));
}

TEST_CASE("a layer of zeros gets the plain step of LARS and LAMB") {
  Problem problem;
  problem.a = {0, 0, 0};
  problem.SetGradients(1);
  SECTION("LARS") {
    Lars lars(problem.parameters, {.learning_rate = 0.5});
    lars.Step();
    CHECK(problem.a[0] == Approx(-0.5 * Problem::GradientAt(1, 0)));
  }
  SECTION("LAMB") {
    Lamb lamb(problem.parameters, {.learning_rate = 0.5});
    lamb.Step();
    CHECK(std::abs(problem.a[0]) == Approx(0.5).epsilon(1e-4));
  }
}

TEST_CASE("LARS and LAMB resume from saved parameters and state") {
  CheckGoesOnFromState([](std::vector<Parameter>& parameters) {
    return std::make_unique<Lars>(parameters, LarsOptions());
  });
  CheckGoesOnFromState([](std::vector<Parameter>& parameters) {
    return std::make_unique<Lamb>(parameters, LambOptions());
  });
}

TEST_CASE("options of LARS and LAMB out of range are refused by name") {
  Problem problem;
  CHECK_THROWS_WITH(
      Lars(problem.parameters, {.trust_coefficient = 0}),
      "trust_coefficient is 0, expected above 0");
  CHECK_THROWS_WITH(
      Lamb(problem.parameters, {.beta2 = 1}), "beta2 is 1, expected at least 0 and below 1");
}

}  // namespace
}  // namespace dtrun::models
