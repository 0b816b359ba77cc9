// DistributedOptimizer with adasum, which combines the steps of the ranks instead of their
// gradients.

#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "tests/include/optimizer_rig.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;

DistributedOptions Adasum() {
  DistributedOptions options;
  options.op = ReduceOp::kAdasum;
  return options;
}

// Gradient descent with momentum.
class Momentum : public Optimizer {
 public:
  explicit Momentum(float rate, float momentum, std::vector<float> start)
      : value(std::move(start)), velocity(value.size()), rate_(rate), momentum_(momentum) {
    list_.push_back({"weight", Buffer(value.data(), value.size()), Buffer()});
  }
  std::vector<Parameter>& parameters() override { return list_; }
  std::vector<NamedBuffer> state() override {
    return {{"velocity", Buffer(velocity.data(), velocity.size())}};
  }
  void Step() override {
    if (!list_[0].has_gradient) return;
    const float* const gradient = static_cast<const float*>(list_[0].gradient.data);
    for (size_t k = 0; k < value.size(); ++k) {
      velocity[k] = momentum_ * velocity[k] + gradient[k];
      value[k] -= rate_ * velocity[k];
    }
  }
  void SetGradient(const std::vector<float>& gradient) {
    std::copy(gradient.begin(), gradient.end(), static_cast<float*>(list_[0].gradient.data));
  }

  std::vector<float> value, velocity;

 private:
  float rate_, momentum_;
  std::vector<Parameter> list_;
};

TEST_CASE("ranks with equal gradients step like one process") {
  const int size = GENERATE(1, 2, 4);
  CHECK(OnRanks(size, [](Communicator& world) {
          Momentum together(0.5f, 0.5f, {8, -4, 2}), alone(0.5f, 0.5f, {8, -4, 2});
          DistributedOptimizer optimizer(world, together, Adasum());
          std::vector<float> memory(3);
          alone.parameters()[0].gradient = Buffer(memory.data(), 3);
          for (int step = 0; step < 4; ++step) {
            const std::vector<float> gradient = {1.0f + static_cast<float>(step), -2, 0.5f};
            together.SetGradient(gradient);
            alone.SetGradient(gradient);
            optimizer.MarkReady(0);
            optimizer.Step();
            alone.Step();
            Expect(together.value == alone.value, "the values of one process");
            Expect(together.velocity == alone.velocity, "its state");
          }
        }) == Nothing(size));
}

TEST_CASE("orthogonal steps of all ranks add up and each rank keeps its own state") {
  const int size = GENERATE(2, 4);
  CHECK(OnRanks(size, [](Communicator& world) {
          const auto p = static_cast<size_t>(world.size()), r = static_cast<size_t>(world.rank());
          Momentum model(1, 0.5f, std::vector<float>(p, 10));
          DistributedOptimizer optimizer(world, model, Adasum());
          std::vector<float> mine(p);
          mine[r] = static_cast<float>(r + 1);
          std::vector<float> expected(p), velocity(p);
          float moved = 0;
          for (int step = 0; step < 3; ++step) {
            model.SetGradient(mine);
            optimizer.Step();
            moved += 2 - std::ldexp(1.0f, -step);  // of a gradient of 1: 1, then 1.5, then 1.75
            for (size_t k = 0; k < p; ++k) expected[k] = 10 - moved * static_cast<float>(k + 1);
            velocity[r] = mine[r] * (2 - std::ldexp(1.0f, -step));
            Expect(model.value == expected, "the sum of all steps");
            Expect(model.velocity == velocity, "the state of this rank's own gradients");
          }
        }) == Nothing(size));
}

TEST_CASE("each parameter is combined separately and an unused parameter does not change") {
  CHECK(OnRanks(2, [](Communicator& world) {
          Model model({2, 3, 1});
          DistributedOptimizer optimizer(world, model, Adasum());
          model.value(2)[0] = 5;
          const bool first = world.rank() == 0;
          for (int step = 1; step <= 2; ++step) {
            optimizer.ZeroGradients();
            model.gradient(0)[0] = first ? 4.0f : 1, model.gradient(0)[1] = first ? 0.0f : 1;
            for (int k = 0; k < 3; ++k) model.gradient(1)[k] = 2;
            optimizer.MarkUnused(2);
            if (first)
              optimizer.MarkUnused(1);  // the other rank's step is used alone
            else
              optimizer.MarkReady(1);
            optimizer.MarkReady(0);
            optimizer.Step();
            const auto times = static_cast<float>(step);
            Expect(model.value(0) == std::vector<float>({-3.5f * times, 0}), "7/8 {4,0} + 0 {1,1}");
            Expect(model.value(1) == std::vector<float>(3, -2 * times), "of one rank");
            Expect(model.value(2)[0] == 5, "of none");
          }
        }) == Nothing(2));
}

TEST_CASE("the gradients of several passes add up on each rank before the step") {
  CHECK(OnRanks(2, [](Communicator& world) {
          Model model;
          DistributedOptions options = Adasum();
          options.backward_passes_per_step = 3;
          DistributedOptimizer optimizer(world, model, options);
          for (int pass = 0; pass < 3; ++pass) {
            model.Backward(static_cast<float>(pass + 10 * world.rank()));
            MarkAll(optimizer);
          }
          optimizer.Step();
          // The steps are -3 and -33 in all elements. For parallel steps, adasum is the mean.
          Expect(model.value(0) == std::vector<float>(3, -18), "the first");
          Expect(model.value(1) == std::vector<float>(2, -18), "the second");
        }) == Nothing(2));
}

TEST_CASE("each rank keeps its own steps of local parameters") {
  CHECK(OnRanks(2, [](Communicator& world) {
          Model model;
          DistributedOptions options = Adasum();
          options.local_parameters = {"p1"};
          DistributedOptimizer optimizer(world, model, options);
          model.Backward(static_cast<float>(1 + world.rank()));
          optimizer.Step();
          Expect(model.value(0)[0] == -1.5f, "the mean of 1 and 2");
          Expect(model.value(1)[0] == static_cast<float>(-1 - world.rank()), "this rank's own");
        }) == Nothing(2));
}

TEST_CASE("a rank in Join follows the steps of other ranks and keeps its optimizer state") {
  CHECK(OnRanks(2, [](Communicator& world) {
          Momentum model(1, 0.5f, {0, 0});
          DistributedOptimizer optimizer(world, model, Adasum());
          const bool first = world.rank() == 0;
          for (int step = 0; step < (first ? 1 : 3); ++step) {
            model.SetGradient({1, 0});
            optimizer.MarkReady(0);
            optimizer.Step();
          }
          const int last = optimizer.Join();
          Expect(last == 1, "the last to join");
          // One equal step of 1, then steps of rank 1 alone: 1.5 and 1.75.
          Expect(model.value == std::vector<float>({-4.25f, 0}), "the steps of all");
          Expect(model.velocity[0] == (first ? 1.0f : 1.75f), "of the steps that it has made");
        }) == Nothing(2));
}

TEST_CASE(
    "check_every finds values that differ after a step and gradients that are infinite or not a "
    "number") {
  const auto errors = OnRanks(2, [](Communicator& world) {
    Model model;
    if (world.rank() == 1) model.value(1)[0] = 3;  // differs from the start
    DistributedOptions options = Adasum();
    options.check_every = 1;
    DistributedOptimizer optimizer(world, model, options);
    optimizer.Step();
  });
  for (const std::string& error : errors)
    CHECK(error == "parameter 'p1' of rank 1 differs from rank 0 in step 0");
  const auto others = OnRanks(2, [](Communicator& world) {
    Model model;
    DistributedOptions options = Adasum();
    options.check_every = 1;
    DistributedOptimizer optimizer(world, model, options);
    if (world.rank() == 1) model.gradient(0)[1] = std::nanf("");
    optimizer.Step();
  });
  for (const std::string& error : others)
    CHECK(error == "the gradient of 'p0' is infinite or NaN on rank 1 in step 0");
}

TEST_CASE("options that adasum does not support are refused by name on every rank") {
  const auto refused = [](int size, const DistributedOptions& options) {
    const Texts errors = OnRanks(size, [&](Communicator& world) {
      Model model;
      DistributedOptimizer optimizer(world, model, options);
    });
    for (const std::string& error : errors) CHECK(error == errors[0]);
    return errors[0];
  };
  CHECK(
      refused(3, Adasum()) ==
      "DistributedOptimizer: adasum on 3 ranks; expected a number of ranks that is a power of two");
  DistributedOptions options = Adasum();
  options.max_gradient_norm = 1;
  CHECK_THAT(refused(2, options), Contains("with max_gradient_norm; expected average or sum"));
  options = Adasum();
  options.wire = Wire::kF16;
  CHECK_THAT(refused(2, options), Contains("with wire; expected average or sum"));
  options = Adasum();
  options.equal_groups = 1;
  CHECK_THAT(refused(2, options), Contains("with equal_groups;"));
  options = Adasum();
  options.gradient_predivide_factor = 2;
  CHECK_THAT(refused(2, options), Contains("needs the reduce op average"));
  options = Adasum();
  options.op = ReduceOp::kMax;
  CHECK_THAT(refused(2, options), Contains("is max; expected average, sum or adasum"));

  const Texts errors = OnRanks(2, [](Communicator& world) {
    Model model;
    DistributedOptions mine = Adasum();
    if (world.rank() == 1) mine.op = ReduceOp::kSum;
    DistributedOptimizer optimizer(world, model, mine);
  });
  CHECK_THAT(errors[0], Contains("the ranks have different options of the optimizer"));
  CHECK_THAT(errors[1], Contains(", adasum on rank 0"));
  const Texts reducer = OnRanks(2, [](Communicator& world) {
    std::vector<float> values(3);
    GradientReducer of_gradients(
        world, {{"w", Buffer(values.data(), values.size())}}, {ReduceOp::kAdasum});
  });
  CHECK_THAT(reducer[0], Contains("gradients are reduced by adasum, which combines whole tensors"));
}

}  // namespace
}  // namespace dtrun::testing
