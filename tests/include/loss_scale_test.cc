// LossScaleOptimizer: all ranks take or skip a step together, whatever wraps it.

#include <dtrun/distributed_optimizer.h>
#include <dtrun/sharded_optimizer.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tests/include/optimizer_rig.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The scale starts at 1024, and doubles after three good steps.
LossScaleOptions Quick() {
  LossScaleOptions options;
  options.initial_scale = 1024;
  options.growth_interval = 3;
  return options;
}

// Computes gradients of rank + 1 + step / 8, times the loss scale.
void Backward(Optimizer& optimizer, Model& model, int rank, int step) {
  for (size_t i = 0; i < model.parameters().size(); ++i)
    std::memset(model.gradient(i), 0, model.parameters()[i].gradient.bytes());
  model.Backward(
      static_cast<float>(optimizer.loss_scale()) *
      (static_cast<float>(rank + 1) + static_cast<float>(step) / 8));
}

TEST_CASE(
    "one rank's overflow skips the step on all ranks, halves the scale, and training goes on") {
  const float overflow = GENERATE(as<float>{}, kInfinity, -kInfinity, std::nanf(""));
  const bool dynamic = GENERATE(true, false);
  CHECK(OnRanks(3, [&](Communicator& world) {
          Model model, plain;
          LossScaleOptions options = Quick();
          options.dynamic = dynamic;
          LossScaleOptimizer scaled(model, options);
          DistributedOptions checked;
          checked.check_every = 1;  // the same parameters on all ranks
          DistributedOptimizer optimizer(world, scaled, checked), alone(world, plain);
          std::vector<double> scales;
          for (int step = 0; step < 9; ++step) {
            scales.push_back(optimizer.loss_scale());
            const std::vector<float> before[] = {model.value(0), model.value(1)};
            Backward(optimizer, model, world.rank(), step);
            if (step == 2 && world.rank() == 1) model.gradient(1)[0] = overflow;
            optimizer.Step();
            if (step == 2) {
              for (size_t i = 0; i < 2; ++i)
                Expect(model.value(i) == before[i], "no parameter has changed");
              continue;
            }
            Backward(alone, plain, world.rank(), step);
            alone.Step();
            for (size_t i = 0; i < 2; ++i)
              Expect(model.value(i) == plain.value(i), "the bits of training without a scale");
          }
          const std::vector<double> expected = {1024, 1024, 1024, 512, 512, 512, 1024, 1024, 1024};
          Expect(scales == (dynamic ? expected : std::vector<double>(9, 1024)), "the scales");
          Expect(scaled.state_of_scale().skipped_steps == 1, "one skipped step");
          Expect(model.steps == 8, "the inner optimizer saw only the good steps");
        }) == Nothing(3));
}

TEST_CASE("clipping uses the norm without the loss scale") {
  CHECK(OnRanks(2, [](Communicator& world) {
          Model model, plain;
          LossScaleOptimizer scaled(model, Quick());
          DistributedOptions clipping;
          clipping.max_gradient_norm = 0.5;
          DistributedOptimizer optimizer(world, scaled, clipping), alone(world, plain, clipping);
          Backward(optimizer, model, world.rank(), 0);
          Backward(alone, plain, world.rank(), 0);
          optimizer.Step();
          alone.Step();
          Expect(optimizer.gradient_norm() == alone.gradient_norm(), "the norm");
          Expect(model.value(0) == plain.value(0), "the values");
        }) == Nothing(2));
}

// With these, ranks step with different gradients: they tell each other.
TEST_CASE("ranks with gradients of their own skip a step together") {
  const std::string way = GENERATE("adasum", "local parameters", "no sync");
  CHECK(OnRanks(2, [&](Communicator& world) {
          Model model;
          LossScaleOptimizer scaled(model, Quick());
          DistributedOptions options;
          if (way == "adasum") options.op = ReduceOp::kAdasum;
          if (way == "local parameters") options.local_parameters = {"p1"};
          DistributedOptimizer optimizer(world, scaled, options);
          for (int step = 0; step < 3; ++step) {
            const auto scope = way == "no sync" ? std::optional(optimizer.NoSync()) : std::nullopt;
            Backward(optimizer, model, world.rank(), step);
            if (step == 1 && world.rank() == 1) model.gradient(1)[0] = kInfinity;
            optimizer.Step();
            Expect(model.steps == (step == 0 ? 1 : step), "a skipped step on all ranks");
            Expect(scaled.loss_scale() == (step == 0 ? 1024 : 512), "the same scale on all ranks");
          }
        }) == Nothing(2));
}

TEST_CASE("a rank that has joined keeps the scale of the others") {
  const ReduceOp op = GENERATE(ReduceOp::kAverage, ReduceOp::kAdasum);
  CHECK(OnRanks(2, [&](Communicator& world) {
          Model model;
          LossScaleOptimizer scaled(model, Quick());
          DistributedOptions options;
          options.op = op;
          DistributedOptimizer optimizer(world, scaled, options);
          for (int step = 0; step < (world.rank() == 0 ? 2 : 4); ++step) {
            Backward(optimizer, model, world.rank(), step);
            if (step == 3) model.gradient(0)[0] = kInfinity;
            MarkAll(optimizer);
            optimizer.Step();
          }
          optimizer.Join();
          Expect(
              scaled.state_of_scale() == LossScale{1024, 0, 1, 1}, "three good steps, one skipped");
        }) == Nothing(2));
}

// Adds up gradients, and counts steps. `norms`: the last ones.
class Sums : public SliceableOptimizer {
 public:
  explicit Sums(DType dtype) : dtype_(dtype) {
    for (size_t i = 0; i < 2; ++i)
      list_.push_back({"p" + std::to_string(i), Buffer(memory_[i], kCounts[i], dtype), Buffer()});
    for (Parameter& each : list_) each.gradient = Buffer(nullptr, each.value.count, dtype);
  }
  std::vector<Parameter>& parameters() override { return list_; }
  std::vector<StateSlot> slots() const override { return {{"sum"}, {"wide", DType::kF64}}; }
  std::vector<NamedBuffer> scalars() override { return {{"steps", Buffer(&steps_, 1)}}; }
  bool needs_norms() const override { return true; }
  void SetNorms(const std::vector<ParameterNorms>& all) override { norms = all; }
  void BeginStep() override { ++steps_; }
  void StepSlice(const ParameterSlice& slice) override {
    dtype_ == DType::kF64 ? Add<double>(slice) : Add<float>(slice);
  }

  void Backward(double amount) {
    for (Parameter& each : list_)
      for (uint64_t k = 0; k < each.gradient.count; ++k) Set(each.gradient, k, amount);
  }
  void Set(const Buffer& buffer, uint64_t k, double value) {
    if (dtype_ == DType::kF64)
      static_cast<double*>(buffer.data)[k] = value;
    else
      static_cast<float*>(buffer.data)[k] = static_cast<float>(value);
  }
  bool HasSame(Sums& other) {
    for (size_t i = 0; i < 2; ++i)
      if (std::memcmp(list_[i].value.data, other.list_[i].value.data, list_[i].value.bytes()) != 0)
        return false;
    return steps_ == other.steps_;
  }

  std::vector<ParameterNorms> norms;

 private:
  static constexpr uint64_t kCounts[2] = {7001, 3};

  template <typename T>
  static void Add(const ParameterSlice& slice) {
    for (uint64_t k = 0; k < slice.count; ++k) {
      T& sum = static_cast<T*>(slice.slots[0])[k];
      double& wide = static_cast<double*>(slice.slots[1])[k];
      sum += static_cast<const T*>(slice.gradient)[k];
      wide += static_cast<double>(sum);
      static_cast<T*>(slice.value)[k] -= sum + static_cast<T>(wide) / 2;
    }
  }

  DType dtype_;
  double memory_[2][7001] = {};
  std::vector<Parameter> list_;
  uint64_t steps_ = 0;
};

TEST_CASE("sharded optimizers and central storage skip and unscale in the same way") {
  const DType dtype = GENERATE(DType::kF32, DType::kF64);
  const bool one_copy = GENERATE(false, true);
  const double clip = GENERATE(0.0, 3.0);
  CHECK(OnRanks(3, [&](Communicator& world) {
          Sums model(dtype), plain(dtype);
          LossScaleOptimizer scaled(model, Quick());
          ShardedOptions options;
          options.one_copy_per_host = one_copy;
          options.max_gradient_norm = clip;
          ShardedOptimizer optimizer(world, scaled, options), alone(world, plain, options);
          for (int step = 0; step < 5; ++step) {
            const double amount = world.rank() + 1 + step / 8.0;
            model.Backward(amount * scaled.loss_scale());
            if (step == 2 && world.rank() == 2)
              model.Set(model.parameters()[0].gradient, 6999, kInfinity);
            optimizer.Step();
            if (step == 2) continue;
            plain.Backward(amount);
            alone.Step();
            for (size_t i = 0; i < 2; ++i)
              Expect(
                  std::abs(model.norms[i].gradient - plain.norms[i].gradient) < 1e-9,
                  "norms without the scale");
            Expect(model.HasSame(plain), "the bits of training without a scale");
          }
          Expect(scaled.state_of_scale() == LossScale{512, 2, 1}, "the scale");
          const std::vector<StateBuffer> state = optimizer.ExportState();
          Expect(state.size() == 9 && state[5].name == "loss_scale/scale", "state with the scale");
        }) == Nothing(3));
}

// Momentum that the library computes while it reduces.
class SteppedMomentum : public Sums {
 public:
  SteppedMomentum() : Sums(DType::kF32) {}
  std::vector<StateSlot> slots() const override { return {{"m"}}; }
  bool needs_norms() const override { return false; }
  void StepSlice(const ParameterSlice&) override {
    throw Error(ErrorCode::kInvalidArgument, "a slice");
  }
  std::optional<MomentumRule> momentum_rule() const override {
    return MomentumRule{
        .keep = 0.5, .take = 0.25, .decay = 0.125, .by_momentum = -1, .by_gradient = -0.5};
  }
};

TEST_CASE("a momentum rule is used with a loss scale and gives the same bits") {
  CHECK(OnRanks(2, [](Communicator& world) {
          SteppedMomentum model, plain;
          LossScaleOptimizer scaled(model, Quick());
          ShardedOptimizer optimizer(world, scaled), alone(world, plain);
          for (int step = 0; step < 4; ++step) {
            model.Backward((world.rank() + 1) * scaled.loss_scale());
            if (step == 1 && world.rank() == 0)
              model.Set(model.parameters()[1].gradient, 2, std::nan(""));
            optimizer.Step();
            if (step == 1) continue;
            plain.Backward(world.rank() + 1);
            alone.Step();
            Expect(model.HasSame(plain), "the bits of training without a scale");
          }
        }) == Nothing(2));
}

// A table with a gradient by rows, a tied pair, a frozen vector and a vector that no rank uses.
struct Mixed : Optimizer {
  std::vector<float> table = std::vector<float>(8), tied = std::vector<float>(2),
                     frozen = std::vector<float>(2), unused = std::vector<float>(2);
  std::vector<Parameter> list;
  Mixed() {
    list = {
        {"table", Buffer(table.data(), 8), {}, 2},
        {"one", Buffer(tied.data(), 2), {}},
        {"other", Buffer(tied.data(), 2), {}},
        {"frozen", Buffer(frozen.data(), 2), {}},
        {"unused", Buffer(unused.data(), 2), {}}};
    list[3].requires_gradient = false;
  }
  std::vector<Parameter>& parameters() override { return list; }
  std::vector<NamedBuffer> state() override { return {}; }
  bool TakesRows() const override { return true; }
  void Step() override {
    for (uint64_t k = 0; k < list[0].rows.count; ++k)
      for (size_t j = 0; j < 2; ++j)
        table[static_cast<size_t>(list[0].rows.rows[k]) * 2 + j] -=
            static_cast<const float*>(list[0].rows.values.data)[k * 2 + j];
    for (size_t i = 1; i < 5; ++i)
      for (size_t k = 0; list[i].has_gradient && k < 2; ++k)
        static_cast<float*>(list[i].value.data)[k] -=
            static_cast<const float*>(list[i].gradient.data)[k];
  }

  void Pass(DistributedOptimizer& optimizer, float gradient, float of_row) {
    const int64_t rows[] = {3, 1};
    float values[] = {of_row, of_row, of_row, of_row};
    optimizer.MarkRows(0, rows, 2, Buffer(values, 4));
    for (size_t k = 0; k < 2; ++k) static_cast<float*>(list[1].gradient.data)[k] = gradient;
    optimizer.MarkReady(1);
    optimizer.MarkReady(2);
    optimizer.MarkUnused(4);
    optimizer.Step();
  }
};

TEST_CASE("gradients by rows and tied and frozen and unused parameters are unscaled and skipped") {
  CHECK(OnRanks(2, [](Communicator& world) {
          Mixed model, plain;
          LossScaleOptimizer scaled(model, Quick());
          DistributedOptimizer optimizer(world, scaled), alone(world, plain);
          for (int step = 0; step < 4; ++step) {
            const auto scale = static_cast<float>(optimizer.loss_scale());
            const float gradient = static_cast<float>(world.rank() + step + 1);
            const bool overflows = step == 1 && world.rank() == 1;
            model.Pass(optimizer, scale * gradient, overflows ? kInfinity : scale * gradient);
            if (step != 1) plain.Pass(alone, gradient, gradient);
            Expect(
                model.table == plain.table && model.tied == plain.tied, "the bits without a scale");
            Expect(model.frozen == plain.frozen && model.unused == plain.unused, "and of the rest");
          }
          Expect(model.table[6] != 0 && model.tied[0] != 0, "they are trained");
          Expect(scaled.state_of_scale() == LossScale{512, 2, 1}, "one skipped step");
        }) == Nothing(2));
}

TEST_CASE("different options of the scale are an error on all ranks") {
  for (const std::string& error : OnRanks(2, [](Communicator& world) {
         Model model;
         LossScaleOptions options = Quick();
         options.growth_interval += static_cast<uint64_t>(world.rank());
         LossScaleOptimizer scaled(model, options);
         DistributedOptimizer optimizer(world, scaled);
       }))
    CHECK_THAT(
        error, Contains("loss scale dynamic from 1024, growth_interval 3, most_skipped_steps 50 on "
                        "rank 0") &&
                   Contains("growth_interval 4, most_skipped_steps 50 on rank 1"));
}

TEST_CASE("the scale is part of the state and all ranks get it from rank 0") {
  CHECK(OnRanks(2, [](Communicator& world) {
          Model model;
          LossScaleOptimizer scaled(model);
          if (world.rank() == 0) scaled.set_state_of_scale({64, 5, 3});
          BroadcastOptimizerState(world, scaled);
          Expect(scaled.state_of_scale() == LossScale{64, 5, 3}, "rank 0's scale");
        }) == Nothing(2));
}

TEST_CASE("a loss that is never finite is an error on all ranks after the allowed skipped steps") {
  const Texts errors = OnRanks(2, [](Communicator& world) {
    Model model;
    LossScaleOptions options = Quick();
    options.most_skipped_steps = 12;
    LossScaleOptimizer scaled(model, options);
    DistributedOptimizer optimizer(world, scaled);
    for (int step = 0; step < 20; ++step) {
      Backward(optimizer, model, world.rank(), step);
      if (world.rank() == 1) model.gradient(1)[1] = std::nanf("");
      optimizer.Step();
      if (step >= 12) throw Error(ErrorCode::kTimeout, "no error came");
    }
  });
  for (const std::string& error : errors)
    CHECK(
        error ==
        "LossScaleOptimizer: the gradient of 'p1' is infinite or NaN with the loss scale 1, in 12 "
        "steps in a row; the loss itself is not finite, or the scale is too large");
}

TEST_CASE("the scale neither falls below 1 nor grows to infinity") {
  LossScaleOptions options;
  options.growth_interval = 1;
  options.most_skipped_steps = 0;
  LossScale scale{0x1p126, 0, 0};
  for (int step = 0; step < 4; ++step)
    detail::UpdateLossScale(scale, options, true, [] { return std::string(); });
  CHECK(scale.scale == 0x1p127);
  for (int step = 0; step < 200; ++step)
    detail::UpdateLossScale(scale, options, false, [] { return std::string(); });
  CHECK(scale == LossScale{1, 0, 200, 200});
}

TEST_CASE("invalid options and 16-bit parameters and what cannot be cut are refused by name") {
  Model model;
  LossScaleOptions options;
  const auto wrap = [&] { LossScaleOptimizer scaled(model, options); };
  options.initial_scale = 0.5;
  CHECK_THROWS_WITH(wrap(), "LossScaleOptimizer: initial_scale is 0.5; expected 1 to 2^127");
  options.initial_scale = std::nan("");
  CHECK_THROWS_WITH(wrap(), Contains("initial_scale is nan"));
  options.initial_scale = 0x1p128;
  CHECK_THROWS_WITH(wrap(), Contains("expected 1 to 2^127"));
  options = {};
  options.growth_interval = 0;
  CHECK_THROWS_WITH(
      wrap(),
      "LossScaleOptimizer: growth_interval is 0; expected 1 or more, or a fixed scale (dynamic = "
      "false)");
  options = {};
  model.parameters()[1].value.dtype = DType::kF16;
  CHECK_THROWS_WITH(wrap(), "LossScaleOptimizer: parameter 'p1' is f16; expected f32 or f64");
  for (const std::string& error : OnRanks(1, [](Communicator& world) {
         Model uncut;
         LossScaleOptimizer scaled(uncut);
         ShardedOptimizer optimizer(world, scaled);
       }))
    CHECK_THAT(error, Contains("cannot be cut into slices"));
  for (const std::string& error : OnRanks(1, [](Communicator& world) {
         Model inner;
         DistributedOptimizer optimizer(world, inner);
         LossScaleOptimizer outside(optimizer);
       }))
    CHECK(
        error ==
        "LossScaleOptimizer: the inner optimizer is a DistributedOptimizer; expected the "
        "LossScaleOptimizer inside the DistributedOptimizer");
  CHECK_THROWS_WITH(
      [] {
        Model inner;
        LossScaleOptimizer(inner).set_state_of_scale({0, 0, 0});
      }(),
      "LossScaleOptimizer: the scale is 0; expected 1 to 2^127");
}

}  // namespace
}  // namespace dtrun::testing
