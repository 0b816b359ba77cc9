// Optimizers with updates that can be cut. Threads of this process are the ranks, and each rank
// updates a share.

#include <dtrun/distributed_optimizer.h>
#include <dtrun/sharded_optimizer.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <memory>

#include "models/optim/adam.h"
#include "models/optim/by_name.h"
#include "tests/runtime/sharded_ranks.h"

namespace dtrun::models {
namespace {

using Values = std::vector<float>;

constexpr int kSteps = 5;

// Layers of odd sizes with gradients that differ by rank and step.
struct Model {
  std::vector<Values> values;
  std::vector<Parameter> parameters;

  Model() {
    const std::vector<std::string> names = {"a.kernel", "a.bias", "b.kernel", "b.bias"};
    const std::vector<size_t> counts = {1003, 17, 6001, 1};
    for (size_t i = 0; i < counts.size(); ++i) {
      values.emplace_back(counts[i]);
      for (size_t k = 0; k < counts[i]; ++k) values[i][k] = float(std::sin(double(k + 31 * i)));
      parameters.push_back(
          {names[i], Buffer(values[i].data(), counts[i]),
           Buffer(static_cast<float*>(nullptr), counts[i])});
    }
  }

  void Backward(int rank, int step) {
    for (const Parameter& parameter : parameters) {
      auto* gradient = static_cast<float*>(parameter.gradient.data);
      for (size_t k = 0; k < parameter.value.count; ++k)
        gradient[k] = float(std::cos(double(k) * 0.7 + rank + 3.1 * step));
    }
  }

  Values All() const {
    Values all;
    for (const Parameter& parameter : parameters) {
      const auto* data = static_cast<const float*>(parameter.value.data);
      all.insert(all.end(), data, data + parameter.value.count);
    }
    return all;
  }
};

template <typename Wrapper>
Values Train(Communicator& world, const std::string& name, const OptimizerSettings& settings) {
  Model model;
  const auto optimizer = MakeOptimizer(name, model.parameters, {}, settings);
  Wrapper wrapper(world, *optimizer);
  for (int step = 0; step < kSteps; ++step) {
    model.Backward(world.rank(), step);
    wrapper.Step();
  }
  return model.All();
}

bool AreNear(const Values& one, const Values& other) {
  for (size_t i = 0; i < one.size(); ++i)
    if (!(std::abs(one[i] - other[i]) <= 1e-6f * (1 + std::abs(one[i])))) return false;
  return one.size() == other.size();
}

// Sums over shards have another order, so norms differ in their last digits.
void CheckShardedLikeUnsharded(
    const std::string& name, const OptimizerSettings& settings, bool with_norms) {
  const int size = GENERATE(2, 3);
  CAPTURE(name, size);
  CHECK(testing::OnRanks(size, testing::Backend::kShm, [&](Communicator& world) {
          const Values sharded = Train<ShardedOptimizer>(world, name, settings);
          const Values unsharded = Train<DistributedOptimizer>(world, name, settings);
          testing::Expect(unsharded != Model().All(), "values that training has changed");
          if (with_norms) {
            testing::Expect(AreNear(sharded, unsharded), "the same values");
          } else {
            testing::Expect(sharded == unsharded, "the same bits");
          }
        }) == testing::Nothing(size));
}

TEST_CASE("sharded SGD has the bits of unsharded SGD") {
  CheckShardedLikeUnsharded("sgd", {.weight_decay = 0.1}, false);
}
TEST_CASE("sharded SGD with Nesterov momentum has the bits of unsharded SGD") {
  CheckShardedLikeUnsharded("sgd", {.momentum = 0.9, .nesterov = true}, false);
}
TEST_CASE("sharded Adam has the bits of unsharded Adam") {
  CheckShardedLikeUnsharded("adam", {}, false);
}
TEST_CASE("sharded AdamW has the bits of unsharded AdamW") {
  CheckShardedLikeUnsharded("adamw", {.weight_decay = 0.5}, false);
}
TEST_CASE("sharded LARS computes the values of unsharded LARS up to rounding") {
  CheckShardedLikeUnsharded("lars", {.weight_decay = 0.1}, true);
}

TEST_CASE("the exported state of a sharded Adam equals the state of Adam on one rank") {
  CHECK(testing::OnRanks(2, testing::Backend::kShm, [](Communicator& world) {
          Model model;
          Adam sharded(model.parameters, {});
          std::vector<StateBuffer> state;
          {
            ShardedOptimizer wrapper(world, sharded);
            model.Backward(0, 0);
            wrapper.Step();
            state = wrapper.ExportState();
          }
          Model alone;
          Adam adam(alone.parameters, {});
          std::vector<Values> gradients;
          for (Parameter& parameter : alone.parameters) {
            gradients.emplace_back(parameter.value.count);
            parameter.gradient = Buffer(gradients.back().data(), parameter.value.count);
          }
          alone.Backward(0, 0);
          adam.Step();
          const auto expected = adam.state();
          testing::Expect(state.size() == expected.size(), "as many pieces of state");
          for (size_t i = 0; i < state.size(); ++i) {
            testing::Expect(state[i].name == expected[i].name, "the same names");
            testing::Expect(
                std::memcmp(
                    state[i].memory.data(), expected[i].buffer.data, expected[i].buffer.bytes()) ==
                    0,
                "the same state");
          }
        }) == testing::Nothing(2));
}

TEST_CASE("optimizers that need whole layers are refused in shards") {
  CHECK(testing::OnRanks(1, testing::Backend::kShm, [](Communicator& world) {
          for (const std::string name : {"lamb", "muon"}) {
            Model model;
            const auto optimizer =
                MakeOptimizer(name, model.parameters, {{17, 59}, {17}, {6001, 1}, {1}});
            std::string refusal;
            try {
              ShardedOptimizer wrapper(world, *optimizer);
            } catch (const Error& error) {
              refusal = error.what();
            }
            testing::Expect(
                refusal.find("cannot be cut into slices") != std::string::npos, "a refusal");
          }
        }) == testing::Nothing(1));
}

}  // namespace
}  // namespace dtrun::models
