#include "models/optim/adam.h"

#include <memory>

#include "tests/models/optim/problem.h"

namespace dtrun::models {
namespace {

// Adam's update of one element in double, after the decay of AdamW.
struct AdamInDouble {
  double rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-7;
  Doubles m = Doubles(5), v = Doubles(5);

  void Step(size_t i, double gradient, double decay, int t, double& value) {
    m[i] = beta1 * m[i] + (1 - beta1) * gradient;
    v[i] = beta2 * v[i] + (1 - beta2) * gradient * gradient;
    value -= rate * decay * value;
    value -= rate * std::sqrt(1 - std::pow(beta2, t)) / (1 - std::pow(beta1, t)) * m[i] /
             (std::sqrt(v[i]) + epsilon);
  }
};

TEST_CASE("Adam follows its formula in float64") {
  Problem problem;
  Adam adam(problem.parameters, {});
  AdamInDouble reference;
  CheckAgainstDouble(problem, adam, [&](Doubles& values, const Doubles& gradients, int t) {
    for (size_t i = 0; i < 5; ++i) reference.Step(i, gradients[i], 0, t, values[i]);
  });
}

TEST_CASE("AdamW decays kernels outside the moments and does not decay biases") {
  Problem problem;
  AdamW adam(problem.parameters, {.learning_rate = 0.01, .beta2 = 0.95, .weight_decay = 0.5});
  AdamInDouble reference{.rate = 0.01, .beta2 = 0.95};
  CheckAgainstDouble(problem, adam, [&](Doubles& values, const Doubles& gradients, int t) {
    for (size_t i = 0; i < 5; ++i) reference.Step(i, gradients[i], i < 3 ? 0.5 : 0, t, values[i]);
  });
}

TEST_CASE("AdamW can exclude parameters from decay by name") {
  Problem problem;
  AdamW adam(problem.parameters, {.weight_decay = 0.5, .not_decayed = {"kernel"}});
  AdamInDouble reference;
  CheckAgainstDouble(problem, adam, [&](Doubles& values, const Doubles& gradients, int t) {
    for (size_t i = 0; i < 5; ++i) reference.Step(i, gradients[i], i < 3 ? 0 : 0.5, t, values[i]);
  });
}

TEST_CASE("Adam resumes from saved parameters and state") {
  CheckGoesOnFromState([](std::vector<Parameter>& parameters) {
    return std::make_unique<Adam>(parameters, AdamOptions());
  });
}

TEST_CASE("options of Adam and AdamW out of range are refused by name") {
  Problem problem;
  CHECK_THROWS_WITH(
      Adam(problem.parameters, {.beta1 = -1}), "beta1 is -1, expected at least 0 and below 1");
  CHECK_THROWS_WITH(
      AdamW(problem.parameters, {.weight_decay = -0.1}),
      "weight_decay is -0.1, expected at least 0");
  problem.parameters[1].value.dtype = DType::kF64;
  CHECK_THROWS_WITH(Adam(problem.parameters, {}), "layer.bias is f64, expected f32");
}

}  // namespace
}  // namespace dtrun::models
