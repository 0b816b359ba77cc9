#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "models/optim/adam.h"
#include "models/optim/sgd.h"

namespace dtrun::models {
namespace {

// Two parameters that do not lie side by side, with gradients that change from step to step.
struct Problem {
  std::vector<float> a{1.0f, -2.0f, 0.5f}, b{3.0f, 0.25f}, a_gradient{0, 0, 0}, b_gradient{0, 0};
  std::vector<Parameter> parameters{
      {"a", Buffer(a.data(), 3), Buffer(a_gradient.data(), 3)},
      {"b", Buffer(b.data(), 2), Buffer(b_gradient.data(), 2)}};

  static double GradientAt(int step, int element) {
    return float(std::sin(1.0 + 3.7 * step + 1.3 * element)) * (element == 1 ? 1e-3f : 1.0f);
  }
  void SetGradients(int step) {
    for (int i = 0; i < 3; ++i) a_gradient[size_t(i)] = float(GradientAt(step, i));
    for (int i = 0; i < 2; ++i) b_gradient[size_t(i)] = float(GradientAt(step, 3 + i));
  }
  float value(int element) const {
    return element < 3 ? a[size_t(element)] : b[size_t(element) - 3];
  }
};

// Compares `optimizer` with `update(element, gradient, step) -> change of the value` in double.
void CheckAgainstDouble(
    Problem& problem, Optimizer& optimizer, const std::function<double(int, double, int)>& change) {
  std::vector<double> expected;
  for (int i = 0; i < 5; ++i) expected.push_back(problem.value(i));
  for (int step = 1; step <= 50; ++step) {
    problem.SetGradients(step);
    optimizer.Step();
    for (int i = 0; i < 5; ++i) {
      expected[size_t(i)] += change(i, Problem::GradientAt(step, i), step);
      CHECK(problem.value(i) == Approx(expected[size_t(i)]).epsilon(1e-5).margin(1e-5));
    }
  }
}

TEST_CASE("plain gradient descent follows its formula in float64 and has no state") {
  Problem problem;
  Sgd sgd(problem.parameters, {.learning_rate = 0.1});
  CHECK(sgd.state().empty());
  CheckAgainstDouble(problem, sgd, [](int, double gradient, int) { return -0.1 * gradient; });
}

TEST_CASE("momentum follows its formula in float64") {
  Problem problem;
  Sgd sgd(problem.parameters, {.learning_rate = 0.01, .momentum = 0.9});
  std::vector<double> v(5);
  CheckAgainstDouble(problem, sgd, [&](int i, double gradient, int) {
    return v[size_t(i)] = 0.9 * v[size_t(i)] - 0.01 * gradient;
  });
  REQUIRE(sgd.state().size() == 1);
  CHECK(sgd.state()[0].buffer.count == 5);
}

TEST_CASE("the learning rate is constant, then falls to almost 0 in a straight line") {
  std::vector<double> rates;
  for (uint64_t step = 0; step < 8; ++step) rates.push_back(LearningRateAt(1, step, 8, 0.5));
  CHECK(rates == std::vector<double>{1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2});
  CHECK(LearningRateAt(0.1, 7, 8, 0) == 0.1);
}

TEST_CASE("a rate that is set counts from the next step on") {
  Problem problem;
  Sgd sgd(problem.parameters, {.learning_rate = 0.1});
  sgd.set_learning_rate(0.02);
  CheckAgainstDouble(problem, sgd, [](int, double gradient, int) { return -0.02 * gradient; });
}

TEST_CASE("Adam follows its formula in float64") {
  Problem problem;
  Adam adam(problem.parameters, {});
  std::vector<double> m(5), v(5);
  CheckAgainstDouble(problem, adam, [&](int i, double gradient, int t) {
    double &mi = m[size_t(i)], &vi = v[size_t(i)];
    mi = 0.9 * mi + 0.1 * gradient;
    vi = 0.999 * vi + 0.001 * gradient * gradient;
    const double rate = 1e-3 * std::sqrt(1 - std::pow(0.999, t)) / (1 - std::pow(0.9, t));
    return -rate * mi / (std::sqrt(vi) + 1e-7);
  });
}

TEST_CASE("an Adam that gets another one's parameters and state goes on like it") {
  Problem one, two;
  Adam first(one.parameters, {}), second(two.parameters, {});
  for (int step = 1; step <= 3; ++step) {
    one.SetGradients(step);
    first.Step();
  }
  two.a = one.a;
  two.b = one.b;
  const auto from = first.state(), to = second.state();
  REQUIRE(from.size() == 3);
  for (size_t i = 0; i < from.size(); ++i) {
    CHECK(from[i].name == to[i].name);
    std::memcpy(to[i].buffer.data, from[i].buffer.data, from[i].buffer.bytes());
  }
  one.SetGradients(4);
  two.SetGradients(4);
  first.Step();
  second.Step();
  CHECK(one.a == two.a);
  CHECK(one.b == two.b);
}

TEST_CASE("a parameter without a gradient is left as it is, and so is its state") {
  const auto check = [](Problem& problem, Optimizer& optimizer) {
    problem.SetGradients(1);
    optimizer.Step();
    const std::vector<float> a = problem.a, b = problem.b;
    problem.parameters[0].has_gradient = false;
    problem.SetGradients(2);
    optimizer.Step();
    CHECK(problem.a == a);
    CHECK(problem.b != b);
  };
  Problem plain, momentum, adam;
  Sgd first(plain.parameters, {.learning_rate = 0.1});
  check(plain, first);
  Sgd second(momentum.parameters, {.learning_rate = 0.1, .momentum = 0.9});
  check(momentum, second);
  const auto* velocity = static_cast<const float*>(second.state()[0].buffer.data);
  CHECK(velocity[0] == -0.1f * float(Problem::GradientAt(1, 0)));  // that of the first step
  Adam third(adam.parameters, {});
  check(adam, third);
}

TEST_CASE("options out of range are refused by name") {
  Problem problem;
  CHECK_THROWS_WITH(
      Sgd(problem.parameters, {.learning_rate = 0}), "learning_rate is 0, expected above 0");
  CHECK_THROWS_WITH(
      Sgd(problem.parameters, {.momentum = 1}), "momentum is 1, expected at least 0 and below 1");
  CHECK_THROWS_WITH(
      Adam(problem.parameters, {.beta1 = -1}), "beta1 is -1, expected at least 0 and below 1");
  problem.parameters[1].value.dtype = DType::kF64;
  CHECK_THROWS_WITH(Adam(problem.parameters, {}), "b is f64, expected f32");
}

}  // namespace
}  // namespace dtrun::models
