#include "models/optim/by_name.h"

#include "models/optim/adam.h"
#include "models/optim/sgd.h"
#include "tests/models/optim/problem.h"

namespace dtrun::models {
namespace {

const std::vector<std::vector<int>> kShapes = {{3, 1}, {2}};

TEST_CASE("every optimizer is created by name and steps with its default settings") {
  for (const std::string& name : OptimizerNames()) {
    CAPTURE(name);
    Problem problem;
    const std::vector<float> before = problem.a;
    const auto optimizer = MakeOptimizer(name, problem.parameters, kShapes);
    CHECK(optimizer->learning_rate() > 0);
    problem.SetGradients(1);
    optimizer->Step();
    CHECK(problem.a != before);
  }
}

TEST_CASE("an optimizer created by name has the given settings") {
  Problem one, two;
  one.SetGradients(1);
  two.SetGradients(1);
  const auto by_name = MakeOptimizer(
      "sgd", one.parameters, kShapes,
      {.learning_rate = 0.5, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
  by_name->Step();
  Sgd sgd(
      two.parameters,
      {.learning_rate = 0.5, .momentum = 0.9, .nesterov = true, .weight_decay = 0.1});
  sgd.Step();
  CHECK(one.a == two.a);
}

TEST_CASE("a parameter without a gradient keeps its value and its state") {
  for (const std::string& name : OptimizerNames()) {
    CAPTURE(name);
    Problem problem;
    const auto optimizer = MakeOptimizer(name, problem.parameters, kShapes);
    problem.SetGradients(1);
    optimizer->Step();
    const std::vector<float> a = problem.a, b = problem.b;
    std::vector<float> state;
    for (const NamedBuffer& each : optimizer->state())
      if (each.name.ends_with("kernel"))
        state.push_back(*static_cast<const float*>(each.buffer.data));
    problem.parameters[0].has_gradient = false;
    problem.SetGradients(2);
    optimizer->Step();
    CHECK(problem.a == a);
    CHECK(problem.b != b);
    size_t next = 0;
    for (const NamedBuffer& each : optimizer->state())
      if (each.name.ends_with("kernel"))
        CHECK(state[next++] == *static_cast<const float*>(each.buffer.data));
  }
}

TEST_CASE("an unknown optimizer and a setting that the optimizer lacks are refused") {
  Problem problem;
  const auto make = [&](const std::string& name, const OptimizerSettings& settings) {
    MakeOptimizer(name, problem.parameters, kShapes, settings);
  };
  CHECK_THROWS_WITH(
      make("adamm", {}), "optimizer 'adamm', expected one of sgd, adam, adamw, lars, lamb, muon");
  CHECK_THROWS_WITH(
      make("adam", {.momentum = 0.9}),
      "momentum: given with optimizer adam, which has learning_rate, beta1, beta2, epsilon");
  CHECK_THROWS_WITH(make("lamb", {.beta1 = 1}), "beta1 is 1, expected at least 0 and below 1");
}

TEST_CASE("every schedule is created by name with a warm-up") {
  for (const std::string& name : ScheduleNames()) {
    CAPTURE(name);
    const Schedule schedule =
        MakeSchedule(name, {.learning_rate = 0.5, .steps = 100, .warmup_steps = 10});
    CHECK(schedule.rate(0) == Approx(0.05));
    CHECK(schedule.rate(9) == Approx(0.5));
    CHECK(schedule.rate(10) == Approx(0.5));
    CHECK(schedule.rate(99) <= 0.5);
  }
  const Schedule straight =
      MakeSchedule("polynomial", {.learning_rate = 1, .steps = 6, .warmup_steps = 2});
  CHECK(straight.rate(4) == Approx(0.5));
  const Schedule pieces =
      MakeSchedule("piecewise", {.learning_rate = 2, .boundaries = {{3}}, .factors = {{1, 0.1}}});
  CHECK(pieces.rate(2) == 2);
  CHECK(pieces.rate(3) == Approx(0.2));
}

TEST_CASE("an unknown schedule and a setting that the schedule lacks are refused") {
  CHECK_THROWS_WITH(
      MakeSchedule("linear", {}),
      "schedule 'linear', expected one of constant, piecewise, cosine, restarts, polynomial, "
      "exponential, cooldown");
  CHECK_THROWS_WITH(
      MakeSchedule("cosine", {.steps = 9, .power = 2}),
      "power: given with schedule cosine, which has final");
  CHECK_THROWS_WITH(
      MakeSchedule("constant", {.steps = 9, .final = 0}),
      "final: given with schedule constant, which has no settings");
  CHECK_THROWS_WITH(
      MakeSchedule("cosine", {.steps = 9, .warmup_steps = 10}),
      "warmup_steps is 10, expected at most the 9 steps");
}

}  // namespace
}  // namespace dtrun::models
