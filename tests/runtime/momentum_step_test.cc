// The fused momentum update of dtrun in a sharded step, compared with the same update by slices.
// Ranks are threads.

#include <dtrun/sharded_optimizer.h>

#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/runtime/sharded_ranks.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;

// SGD with momentum. If `tells` is true, momentum_rule() returns the formula, so dtrun computes the
// update.
template <typename T>
class Momentum : public Moments<T> {
 public:
  Momentum(const MomentumRule& rule, bool tells, std::vector<StateSlot> slots)
      : Moments<T>(kCounts), rule_(rule), tells_(tells), slots_(std::move(slots)) {}

  std::vector<StateSlot> slots() const override { return slots_; }
  std::vector<NamedBuffer> scalars() override { return {}; }
  std::optional<MomentumRule> momentum_rule() const override {
    return tells_ ? std::optional(rule_) : std::nullopt;
  }
  void StepSlice(const dtrun::ParameterSlice& slice) override {
    ++slices;
    const auto* gradient = static_cast<const float*>(slice.gradient);
    auto* value = static_cast<float*>(slice.value);
    for (uint64_t k = 0; k < slice.count; ++k) {
      float g = gradient[k];
      if (rule_.decay != 0) g += float(rule_.decay) * value[k];
      float change = float(rule_.by_gradient) * g;
      if (!slots_.empty()) {
        float& m = static_cast<float*>(slice.slots[0])[k];
        m = float(rule_.keep) * m + float(rule_.take) * g;
        change = float(rule_.by_momentum) * m;
        if (rule_.by_gradient != 0) change += float(rule_.by_gradient) * g;
      }
      value[k] += change;
    }
  }

  int slices = 0;

 private:
  MomentumRule rule_;
  bool tells_;
  std::vector<StateSlot> slots_;
};

constexpr MomentumRule kClassic{.keep = 0.9, .by_momentum = -0.1};
constexpr MomentumRule kNesterov{
    .keep = 0.9, .take = -0.1, .decay = 0.01, .by_momentum = 0.9, .by_gradient = -0.1};

struct Case {
  MomentumRule rule;
  std::vector<StateSlot> slots;
  bool one_copy = false, frozen = false;
};

std::vector<float> Train(Communicator& world, const Case& c, bool tells) {
  Momentum<float> model(c.rule, tells, c.slots);
  if (c.frozen) model.parameters()[3].requires_gradient = false;
  ShardedOptions options;
  options.one_copy_per_host = c.one_copy;
  ShardedOptimizer optimizer(world, model, options);
  for (int step = 0; step < 4; ++step) {
    model.Backward(world.rank(), step);
    optimizer.Step();
  }
  Expect(tells == (model.slices == 0), "slices, unless dtrun computes the update");
  return model.AllValues();
}

void CheckSameBits(int size, Backend backend, const Case& c) {
  CHECK(OnRanks(size, backend, [&](Communicator& world) {
          const std::vector<float> fused = Train(world, c, true);
          Expect(fused == Train(world, c, false), "the same bits");
          Expect(fused[5] != 1.0f / 16 - 0.75f || c.frozen, "something moves");
        }) == Nothing(size));
}

TEST_CASE("a step that dtrun computes has the bits of the same step by slices") {
  const int size = GENERATE(1, 2, 3, 4);
  const Backend backend = GENERATE(Backend::kShm, Backend::kCopying);
  CheckSameBits(size, backend, {kClassic, {{"momentum"}}});
  CheckSameBits(size, backend, {kNesterov, {{"momentum"}}});
  CheckSameBits(size, backend, {{.by_gradient = -0.5}, {}});
  CheckSameBits(size, backend, {.rule = kNesterov, .slots = {{"momentum"}}, .frozen = true});
  if (backend == Backend::kShm)
    CheckSameBits(size, backend, {.rule = kClassic, .slots = {{"momentum"}}, .one_copy = true});
}

TEST_CASE("a step that dtrun computes has the same bits over hosts") {
  CheckSameBits(5, Backend::kHosts, {kNesterov, {{"momentum"}}});
}

TEST_CASE("a momentum rule with f64 values or other state is refused by name on all ranks") {
  const Texts doubles = OnRanks(2, Backend::kShm, [](Communicator& world) {
    Momentum<double> model(kClassic, true, {{"momentum"}});
    ShardedOptimizer(world, model).Step();
  });
  for (const std::string& text : doubles)
    CHECK_THAT(text, Contains("a step with momentum: parameter 'p0' is f64, expected f32"));
  const Texts state = OnRanks(2, Backend::kShm, [](Communicator& world) {
    Momentum<float> model(kClassic, true, {{"momentum", DType::kF64}});
    ShardedOptimizer(world, model).Step();
  });
  for (const std::string& text : state)
    CHECK_THAT(text, Contains("a step with momentum: the state of 'p0' is f64, expected f32"));
  const Texts two = OnRanks(2, Backend::kShm, [](Communicator& world) {
    Momentum<float> model(kClassic, true, {{"a"}, {"b"}});
    ShardedOptimizer(world, model).Step();
  });
  for (const std::string& text : two)
    CHECK_THAT(text, Contains("a step with momentum: found 2 slots"));
}

}  // namespace
}  // namespace dtrun::testing
