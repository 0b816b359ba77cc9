// Unused, frozen and tied parameters, and a trainer's mistakes with them.

#include <catch2/catch.hpp>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/include/optimizer_rig.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("a parameter is updated only if at least one rank used it") {
  const bool own_memory = GENERATE(false, true);
  CHECK(OnRanks(3, [&](Communicator& world) {
          Model model({2, 3, 2});
          std::vector<float> memory[3];
          for (size_t i = 0; own_memory && i < 3; ++i) {
            memory[i].resize(model.value(i).size());
            model.parameters()[i].gradient = Buffer(memory[i].data(), memory[i].size());
          }
          DistributedOptimizer optimizer(world, model);
          optimizer.ZeroGradients();
          model.Backward(3);  // also writes unused gradients, as stale values
          optimizer.MarkUnused(2);
          if (world.rank() == 1)
            optimizer.MarkReady(1);
          else
            optimizer.MarkUnused(1);
          optimizer.MarkReady(0);
          optimizer.Step();
          Expect(model.value(0)[0] == -3, "used by all");
          Expect(model.value(1)[2] == -1, "used by one of three");
          Expect(!model.parameters()[2].has_gradient && model.value(2)[0] == 0, "used by none");
        }) == Nothing(3));
}

TEST_CASE("a parameter counts as used if one of several passes used it") {
  CHECK(OnRanks(2, [](Communicator& world) {
          Model model;
          DistributedOptions options;
          options.backward_passes_per_step = 2;
          DistributedOptimizer optimizer(world, model, options);
          optimizer.ZeroGradients();
          model.gradient(0)[0] = 2;
          optimizer.MarkReady(0), optimizer.MarkUnused(1);
          Expect(optimizer.backward_passes() == 1, "one pass");
          optimizer.MarkUnused(0), optimizer.MarkUnused(1);
          optimizer.Step();
          Expect(model.value(0)[0] == -2, "the first");
          Expect(!model.parameters()[1].has_gradient, "the second");
        }) == Nothing(2));
}

// One step with gradients of value `rank`.
void StepOnce(DistributedOptimizer& optimizer, Model& model, int rank) {
  optimizer.ZeroGradients();
  for (size_t i = 0; i < model.parameters().size(); ++i)
    if (model.parameters()[i].gradient.data != nullptr)
      for (size_t k = 0; k < model.value(i).size(); ++k)
        model.gradient(i)[k] = static_cast<float>(rank);
  MarkAll(optimizer);
  optimizer.Step();
}

TEST_CASE("parameters can be frozen and thawed during training") {
  const bool frozen_at_first = GENERATE(false, true);
  CHECK(OnRanks(3, [&](Communicator& world) {
          Model model({2, 3, 2});
          if (frozen_at_first) model.parameters()[1].requires_gradient = false;
          DistributedOptions options;
          options.check_every = 1;
          DistributedOptimizer optimizer(world, model, options);
          if (frozen_at_first)
            Expect(model.parameters()[1].gradient.data == nullptr, "no memory either");
          else
            optimizer.Freeze(1);
          for (int step = 0; step < 2; ++step) StepOnce(optimizer, model, world.rank());
          Expect(model.value(0)[0] == -2 && model.value(1)[0] == 0, "frozen");
          optimizer.Thaw(1);
          for (int step = 0; step < 2; ++step) StepOnce(optimizer, model, world.rank());
          Expect(model.value(0)[0] == -4 && model.value(1)[2] == -2, "thawed");
          optimizer.Freeze(1), optimizer.Freeze(2);
          StepOnce(optimizer, model, world.rank());
          optimizer.Thaw(2);
          StepOnce(optimizer, model, world.rank());
          Expect(model.value(1)[0] == -2 && model.value(2)[1] == -5, "and again");
          const StepStatistics steps = optimizer.statistics().total;
          Expect(steps.steps == 6 && steps.buckets == (frozen_at_first ? 6u + 4u : 6u), "buckets");
        }) == Nothing(3));
}

TEST_CASE("groups and wire formats work with parameters that are frozen first and thawed later") {
  const bool frozen_first = GENERATE(false, true);
  const Wire wire = GENERATE(Wire::kNone, Wire::kF16);
  CHECK(OnRanks(3, [&](Communicator& world) {
          Model model({2, 3, 2, 4});
          for (const size_t i : {frozen_first ? 0u : 1u, 3u})
            model.parameters()[i].requires_gradient = false;
          DistributedOptions options;
          options.groups = {{"p0"}, {"p1", "p2"}};
          options.wire = wire;
          DistributedOptimizer optimizer(world, model, options);
          StepOnce(optimizer, model, world.rank());
          for (const size_t i : {0u, 1u, 3u}) optimizer.Thaw(i);
          for (int step = 0; step < 2; ++step) StepOnce(optimizer, model, world.rank());
          Expect(model.value(0)[0] == (frozen_first ? -2 : -3), "p0");
          Expect(model.value(1)[2] == (frozen_first ? -3 : -2), "p1");
          Expect(model.value(2)[0] == -3 && model.value(3)[3] == -2, "p2, p3");
        }) == Nothing(3));
}

TEST_CASE("the average of a thawed parameter divides by the ranks that have data") {
  CHECK(OnRanks(3, [](Communicator& world) {
          Model model({2, 3});
          model.parameters()[1].requires_gradient = false;
          DistributedOptimizer optimizer(world, model);
          optimizer.Thaw(1);
          if (world.rank() > 0) StepOnce(optimizer, model, world.rank());
          optimizer.Join();
          Expect(std::abs(model.value(0)[0] + 1.5f) < 1e-6f, "the one");
          Expect(std::abs(model.value(1)[0] + 1.5f) < 1e-6f, "the other");
        }) == Nothing(3));
}

TEST_CASE("a rank in Join follows the Freeze and Thaw calls of other ranks") {
  CHECK(OnRanks(3, [](Communicator& world) {
          Model model({2, 3, 2});
          model.parameters()[1].requires_gradient = false;
          DistributedOptions options;
          options.check_every = 1;
          DistributedOptimizer optimizer(world, model, options);
          for (int epoch = 1; epoch <= 2; ++epoch) {
            StepOnce(optimizer, model, 2);
            if (world.rank() > 0) {
              optimizer.Thaw(1), optimizer.Freeze(0);
              StepOnce(optimizer, model, 2);
              StepOnce(optimizer, model, 2);
              optimizer.Thaw(0), optimizer.Freeze(1);
              StepOnce(optimizer, model, 2);
            }
            optimizer.Join();
            const auto steps = static_cast<float>(epoch);
            Expect(model.value(0)[0] == -4 * steps && model.value(1)[2] == -4 * steps, "both");
            Expect(model.value(2)[0] == -8 * steps, "the third");
          }
        }) == Nothing(3));
}

TEST_CASE("a parameter that is frozen only on some ranks is named with those ranks") {
  const Texts frozen = OnRanks(3, [](Communicator& world) {
    Model model;
    DistributedOptimizer optimizer(world, model);
    StepOnce(optimizer, model, 1);
    if (world.rank() == 1) optimizer.Freeze(1);
    StepOnce(optimizer, model, 1);
  });
  for (const std::string& text : frozen)
    CHECK(
        text ==
        "parameter 'p1' is frozen on rank 1 and not on ranks 0, 2 in step 1; all ranks "
        "Freeze() and Thaw() it before the same step");
  const Texts wrapped = OnRanks(2, [](Communicator& world) {
    Model model;
    model.parameters()[0].requires_gradient = world.rank() == 0;
    DistributedOptimizer optimizer(world, model);
  });
  for (const std::string& text : wrapped)
    CHECK_THAT(text, Contains("different options") && Contains("frozen 'p0' on rank 1"));
}

TEST_CASE("Freeze in the middle of a step is refused") {
  const Texts texts = OnRanks(1, [](Communicator& world) {
    Model model;
    DistributedOptimizer optimizer(world, model);
    optimizer.MarkReady(0);
    optimizer.Freeze(1);
  });
  CHECK_THAT(texts[0], Contains("Freeze() of 'p1' in the middle of a step"));
}

// A model with two parameters in the same memory, such as an embedding that is also the output
// layer.
class TiedModel : public Model {
 public:
  TiedModel() : Model({4, 2, 4}) {
    parameters()[2].value = parameters()[0].value;
    parameters()[0].name = "embedding", parameters()[2].name = "output";
  }
};

TEST_CASE("tied weights have one gradient that is reduced once when both are marked") {
  CHECK(OnRanks(2, [](Communicator& world) {
          TiedModel model;
          DistributedOptimizer optimizer(world, model);
          for (int step = 1; step <= 2; ++step) {
            optimizer.ZeroGradients();
            Expect(model.gradient(0) == model.gradient(2), "one gradient");
            model.gradient(2)[3] += static_cast<float>(2 * world.rank());
            optimizer.MarkReady(2);
            optimizer.MarkReady(1);
            model.gradient(0)[3] += static_cast<float>(4 * world.rank());  // not reduced yet
            optimizer.MarkReady(0);
            optimizer.Step();
            Expect(model.value(0)[3] == -3 * static_cast<float>(step), "one update");
            Expect(!model.parameters()[2].has_gradient, "the second is left alone");
          }
        }) == Nothing(2));
}

TEST_CASE("errors name both tied weights") {
  const Texts texts = OnRanks(2, [](Communicator& world) {
    TiedModel model;
    std::vector<float> wide(5);
    if (world.rank() == 1)
      model.parameters()[0].value = model.parameters()[2].value = Buffer(wide.data(), 5);
    DistributedOptimizer optimizer(world, model);
  });
  for (const std::string& text : texts)
    CHECK_THAT(
        text, Contains("'embedding' and 'output' f32[4] on rank 0") &&
                  Contains("'embedding' and 'output' f32[5] on rank 1"));
}

TEST_CASE("an invalid list of parameters is refused with the parameter's name") {
  const auto refusal = [](const std::function<void(std::vector<Parameter>&)>& change,
                          DistributedOptions options = {}) {
    return OnRanks(1, [&](Communicator& world) {
      TiedModel model;
      change(model.parameters());
      DistributedOptimizer optimizer(world, model, options);
    })[0];
  };
  CHECK(
      refusal([](auto& list) { list[1].name = "output"; }) ==
      "DistributedOptimizer: parameters 1 and 2 are both called 'output'; every parameter needs a "
      "name of its own");
  CHECK(refusal([](auto& list) {
          list[1].name = "";
        }) == "DistributedOptimizer: parameter 1 has no name; every parameter needs one");
  CHECK(
      refusal([](auto& list) { list[2].value = list[0].value.Slice(1, 3); }) ==
      "DistributedOptimizer: parameters 'embedding' and 'output' share a part of their memory; "
      "expected all of it (tied weights) or none");
  std::vector<float> one(4), other(4);
  CHECK(
      refusal([&](auto& list) {
        list[0].gradient = Buffer(one.data(), 4), list[2].gradient = Buffer(other.data(), 4);
      }) ==
      "DistributedOptimizer: the tied parameters 'embedding' and 'output' have different memory "
      "for their gradients; give them the same, or none");
  DistributedOptions local;
  local.local_parameters = {"output"};
  CHECK_THAT(refusal([](auto&) {}, local), Contains("one is in local_parameters"));
  CHECK_THAT(
      refusal([](auto& list) { list[1].row_length = 3; }),
      Contains("parameter 'p1' has rows of 3 elements but 2; expected whole rows"));
}

TEST_CASE("Step without a backward pass is refused with the calls to make") {
  const Texts texts = OnRanks(2, [](Communicator& world) {
    Model model;
    DistributedOptimizer optimizer(world, model);
    StepOnce(optimizer, model, world.rank());
    try {
      optimizer.Step();
    } catch (const Error& error) {
      StepOnce(optimizer, model, world.rank());  // the refused step sent no data
      Expect(model.value(0)[0] == -1, "two steps");
      throw;
    }
  });
  for (const std::string& text : texts)
    CHECK_THAT(
        text, Contains("Step() without a backward pass") && Contains("call MarkReady()") &&
                  Contains("Join()"));
}

TEST_CASE("Step accepts passes under NoSync and trainers that never mark gradients") {
  CHECK(OnRanks(2, [](Communicator& world) {
          Model model, silent;
          DistributedOptimizer optimizer(world, model), other(world, silent);
          for (int step = 0; step < 3; ++step) {
            {
              const auto scope = optimizer.NoSync();
              MarkAll(optimizer);
            }
            optimizer.Step();
            other.Step();
          }
        }) == Nothing(2));
}

TEST_CASE("Step after Synchronize does not reduce again") {
  CHECK(OnRanks(3, [](Communicator& world) {
          Model model;
          DistributedOptions options;
          options.op = ReduceOp::kSum;
          options.max_gradient_norm = 1e6;
          DistributedOptimizer optimizer(world, model, options);
          optimizer.ZeroGradients();
          model.Backward(1);
          MarkAll(optimizer);
          optimizer.Synchronize();
          optimizer.Synchronize();
          Expect(model.gradient(0)[0] == 3, "reduced once");
          if (world.rank() != 2) model.gradient(0)[0] = 5;  // a second sum would change it
          optimizer.Step();
          Expect(model.value(0)[0] == (world.rank() != 2 ? -5 : -3), "used as it is");
        }) == Nothing(3));
}

TEST_CASE("ten batches with four passes per step update by the sum or the average of the passes") {
  // The loss is x - y[0], so the gradients are x' = 1 and y' = {-1, 0}. The optimizer adds
  // gradients.
  const bool average = GENERATE(false, true);
  const int size = GENERATE(1, 2, 4);
  CHECK(OnRanks(size, [&](Communicator& world) {
          Model model({1, 2});
          model.value(1) = {1, 2};
          model.parameters()[0].name = "x", model.parameters()[1].name = "y";
          DistributedOptions options;
          options.backward_passes_per_step = 4;
          options.average_aggregated_gradients = average;
          DistributedOptimizer optimizer(world, model, options);
          optimizer.ZeroGradients();
          for (int batch = 0; batch < 10; ++batch) {
            model.gradient(0)[0] += -1, model.gradient(1)[0] += 1;  // the model subtracts
            MarkAll(optimizer);
            if (batch % 4 == 3) optimizer.Step(), optimizer.ZeroGradients();
            const float x = static_cast<float>((batch + 1) / 4 * (average ? 1 : 4));
            Expect(model.value(0)[0] == x, "x after batch " + std::to_string(batch));
            Expect(model.value(1) == std::vector<float>{1 - x, 2}, "y");
          }
          Expect(optimizer.backward_passes() == 10 % 4, "passes of the step that has begun");
        }) == Nothing(size));
}

TEST_CASE("an infinite gradient in one aggregation does not affect the next aggregation") {
  CHECK(OnRanks(2, [](Communicator& world) {
          Model model;
          DistributedOptions options;
          options.backward_passes_per_step = 2;
          DistributedOptimizer optimizer(world, model, options);
          for (int step = 0; step < 3; ++step) {
            for (int pass = 0; pass < 2; ++pass) {
              model.Backward(
                  step == 0 && pass == 1 && world.rank() == 1
                      ? std::numeric_limits<float>::infinity()
                      : 1);
              MarkAll(optimizer);
            }
            optimizer.Synchronize();
            Expect(std::isinf(model.gradient(0)[0]) == (step == 0), "the reduced gradient");
            if (step == 0) optimizer.ZeroGradients();  // discards this step
            optimizer.Step();
            optimizer.ZeroGradients();
          }
          Expect(model.value(1)[1] == -4, "two steps of two passes");
        }) == Nothing(2));
}

}  // namespace
}  // namespace dtrun::testing
