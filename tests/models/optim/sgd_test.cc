#include "models/optim/sgd.h"

#include "tests/models/optim/problem.h"

namespace dtrun::models {
namespace {

TEST_CASE("plain gradient descent follows its formula in float64 and has no state") {
  Problem problem;
  Sgd sgd(problem.parameters, {.learning_rate = 0.1});
  CHECK(sgd.state().empty());
  CheckAgainstDouble(problem, sgd, [](Doubles& values, const Doubles& gradients, int) {
    for (size_t i = 0; i < 5; ++i) values[i] -= 0.1 * gradients[i];
  });
}

TEST_CASE("momentum and weight decay follow their formula in float64") {
  const double decay = GENERATE(0.0, 0.1);
  Problem problem;
  Sgd sgd(problem.parameters, {.learning_rate = 0.01, .momentum = 0.9, .weight_decay = decay});
  Doubles v(5);
  CheckAgainstDouble(problem, sgd, [&](Doubles& values, const Doubles& gradients, int) {
    for (size_t i = 0; i < 5; ++i) {
      v[i] = 0.9 * v[i] - 0.01 * (gradients[i] + decay * values[i]);
      values[i] += v[i];
    }
  });
  REQUIRE(sgd.state().size() == 2);
  CHECK(sgd.state()[0].name == "sgd.velocity/layer.kernel");
  CHECK(sgd.state()[0].buffer.count == 3);
}

TEST_CASE("Nesterov's momentum follows its formula in float64") {
  Problem problem;
  Sgd sgd(problem.parameters, {.learning_rate = 0.01, .momentum = 0.9, .nesterov = true});
  Doubles v(5);
  CheckAgainstDouble(problem, sgd, [&](Doubles& values, const Doubles& gradients, int) {
    for (size_t i = 0; i < 5; ++i) {
      v[i] = 0.9 * v[i] - 0.01 * gradients[i];
      values[i] += 0.9 * v[i] - 0.01 * gradients[i];
    }
  });
}

TEST_CASE("a new learning rate counts from the next step on") {
  Problem problem;
  Sgd sgd(problem.parameters, {.learning_rate = 0.1});
  sgd.set_learning_rate(0.02);
  CHECK(sgd.learning_rate() == 0.02);
  CheckAgainstDouble(problem, sgd, [](Doubles& values, const Doubles& gradients, int) {
    for (size_t i = 0; i < 5; ++i) values[i] -= 0.02 * gradients[i];
  });
  CHECK_THROWS_WITH(
      sgd.set_learning_rate(std::nan("")), "learning_rate is nan, expected at least 0");
}

TEST_CASE("options of SGD out of range are refused by name") {
  Problem problem;
  CHECK_THROWS_WITH(
      Sgd(problem.parameters, {.learning_rate = 0}), "learning_rate is 0, expected above 0");
  CHECK_THROWS_WITH(
      Sgd(problem.parameters, {.momentum = 1}), "momentum is 1, expected at least 0 and below 1");
  CHECK_THROWS_WITH(
      Sgd(problem.parameters, {.weight_decay = -1}), "weight_decay is -1, expected at least 0");
  CHECK_THROWS_WITH(
      Sgd(problem.parameters, {.nesterov = true}), "momentum is 0, expected above 0 with nesterov");
}

}  // namespace
}  // namespace dtrun::models
