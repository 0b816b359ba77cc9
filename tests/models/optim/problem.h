#ifndef DTRUN_TESTS_MODELS_OPTIM_PROBLEM_H_
#define DTRUN_TESTS_MODELS_OPTIM_PROBLEM_H_

#include <dtrun/optimizer.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

namespace dtrun::models {

/// Two parameters in separate memory, with gradients that change from step to step. Optimizers
/// exclude the second parameter from decay.
struct Problem {
  std::vector<float> a{1.0f, -2.0f, 0.5f}, b{3.0f, 0.25f}, a_gradient{0, 0, 0}, b_gradient{0, 0};
  std::vector<Parameter> parameters{
      {"layer.kernel", Buffer(a.data(), 3), Buffer(a_gradient.data(), 3)},
      {"layer.bias", Buffer(b.data(), 2), Buffer(b_gradient.data(), 2)}};

  static double GradientAt(int step, int element) {
    return float(std::sin(1.0 + 3.7 * step + 1.3 * element)) * (element == 1 ? 1e-3f : 1.0f);
  }
  void SetGradients(int step) {
    for (int i = 0; i < 3; ++i) a_gradient[size_t(i)] = float(GradientAt(step, i));
    for (int i = 0; i < 2; ++i) b_gradient[size_t(i)] = float(GradientAt(step, 3 + i));
  }
  double value(int element) const {
    return element < 3 ? a[size_t(element)] : b[size_t(element) - 3];
  }
};

using Doubles = std::vector<double>;

/// The Euclidean norm of the elements of `all` that belong to the parameter of `element`.
inline double NormAround(const Doubles& all, int element) {
  double squares = 0;
  for (size_t i = element < 3 ? 0 : 3; i < (element < 3 ? 3u : 5u); ++i) squares += all[i] * all[i];
  return std::sqrt(squares);
}

/// Compares 50 steps of `optimizer` with `step(values, gradients, t)` for t = 1, 2, ... `step`
/// changes the values of all five elements in double.
inline void CheckAgainstDouble(
    Problem& problem, Optimizer& optimizer,
    const std::function<void(Doubles&, const Doubles&, int)>& step) {
  Doubles expected(5), gradients(5);
  for (int i = 0; i < 5; ++i) expected[size_t(i)] = problem.value(i);
  for (int t = 1; t <= 50; ++t) {
    problem.SetGradients(t);
    for (int i = 0; i < 5; ++i) gradients[size_t(i)] = Problem::GradientAt(t, i);
    optimizer.Step();
    step(expected, gradients, t);
    for (int i = 0; i < 5; ++i)
      CHECK(problem.value(i) == Approx(expected[size_t(i)]).epsilon(2e-5).margin(2e-5));
  }
}

/// After three steps, a second optimizer of the same kind takes the first optimizer's parameters
/// and state. Both must make the same fourth step.
template <typename MakeOptimizer>
void CheckGoesOnFromState(const MakeOptimizer& make) {
  Problem one, two;
  const auto first = make(one.parameters), second = make(two.parameters);
  for (int step = 1; step <= 3; ++step) {
    one.SetGradients(step);
    first->Step();
  }
  two.a = one.a;
  two.b = one.b;
  const auto from = first->state(), to = second->state();
  REQUIRE(from.size() == to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    CHECK(from[i].name == to[i].name);
    REQUIRE(from[i].buffer.bytes() == to[i].buffer.bytes());
    std::memcpy(to[i].buffer.data, from[i].buffer.data, from[i].buffer.bytes());
  }
  one.SetGradients(4);
  two.SetGradients(4);
  first->Step();
  second->Step();
  CHECK(one.a == two.a);
  CHECK(one.b == two.b);
}

}  // namespace dtrun::models

#endif
