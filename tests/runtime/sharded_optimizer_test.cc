// ShardedOptimizer compared with DistributedOptimizer. Ranks are threads.

#include <dtrun/distributed_optimizer.h>
#include <dtrun/elastic.h>
#include <dtrun/sharded_optimizer.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "ops/engine/flight_recorder.h"
#include "runtime/c_api/handles.h"
#include "runtime/step/parameter_shards.h"
#include "tests/runtime/sharded_ranks.h"
#include "tests/support/thread_ranks.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;
using namespace std::chrono_literals;

ShardedOptions OneCopy(bool one_copy) {
  ShardedOptions options;
  options.one_copy_per_host = one_copy;
  return options;
}

template <typename T>
std::vector<T> TrainSharded(Communicator& world, const ShardedOptions& options, int steps) {
  Moments<T> model(kCounts);
  ShardedOptimizer optimizer(world, model, options);
  for (int step = 0; step < steps; ++step) {
    model.Backward(world.rank(), step);
    for (size_t i = kCounts.size(); i-- > 0;)
      if (step % 2 == 0 || i % 2 == 0) optimizer.MarkReady(i);
    optimizer.Step();
  }
  return model.AllValues();
}

template <typename T>
std::vector<T> TrainUnsharded(Communicator& world, int steps) {
  Moments<T> model(kCounts);
  DistributedOptimizer optimizer(world, model);
  for (int step = 0; step < steps; ++step) {
    model.Backward(world.rank(), step);
    optimizer.Step();
  }
  return model.AllValues();
}

template <typename T>
void CheckShardedLikeUnsharded(int size, Backend backend, bool one_copy) {
  CHECK(OnRanks(size, backend, [&](Communicator& world) {
          const auto sharded = TrainSharded<T>(world, OneCopy(one_copy), 4);
          Expect(sharded == TrainUnsharded<T>(world, 4), "the same bits");
        }) == Nothing(size));
}

TEST_CASE("sharded training has the bits of training without shards") {
  const int size = GENERATE(1, 2, 3, 4);
  SECTION("f32, a copy per rank") { CheckShardedLikeUnsharded<float>(size, Backend::kShm, false); }
  SECTION("f64, a copy per rank") { CheckShardedLikeUnsharded<double>(size, Backend::kShm, false); }
  SECTION("f32, one copy") { CheckShardedLikeUnsharded<float>(size, Backend::kShm, true); }
  SECTION("f64, one copy") { CheckShardedLikeUnsharded<double>(size, Backend::kShm, true); }
  SECTION("without mapped memory") {
    CheckShardedLikeUnsharded<float>(size, Backend::kCopying, false);
  }
}

TEST_CASE("a fused pass over mapped memory has the bits of separate operations") {
  const int size = GENERATE(2, 3, 4);
  std::vector<std::vector<float>> values(2);
  for (const Backend backend : {Backend::kShm, Backend::kCopying}) {
    CHECK(OnRanks(size, backend, [&](Communicator& world) {
            auto trained = TrainSharded<float>(world, {}, 5);
            if (world.rank() == 0) values[backend == Backend::kShm ? 0 : 1] = std::move(trained);
          }) == Nothing(size));
  }
  CHECK(values[0] == values[1]);
}

// On several hosts, the rounding of all_reduce and reduce_scatter may differ.
TEST_CASE("sharded training over several hosts gives the values of training without shards") {
  const int size = GENERATE(3, 4, 5);
  CHECK(OnRanks(size, Backend::kHosts, [&](Communicator& world) {
          ShardedOptions options;
          options.overlap_forward = world.size() == 4;
          const auto expected = TrainUnsharded<double>(world, 4);
          Moments<double> model(kCounts);
          ShardedOptimizer optimizer(world, model, options);
          for (int step = 0; step < 4; ++step) {
            for (size_t i = 0; i < kCounts.size(); ++i) optimizer.WaitForParameter(i);
            model.Backward(world.rank(), step);
            for (size_t i = kCounts.size(); i-- > 0;) optimizer.MarkReady(i);
            optimizer.Step();
          }
          optimizer.WaitForParameters();
          const auto sharded = model.AllValues();
          for (size_t k = 0; k < expected.size(); ++k)
            Expect(std::abs(sharded[k] - expected[k]) < 1e-12, "the values");
        }) == Nothing(size));
}

// Hosts of two ranks. The last host may have one rank.
TEST_CASE(
    "over several hosts with one copy per host training has the bits of training without shards") {
  const int size = GENERATE(3, 4, 5);
  CHECK(OnRanks(size, Backend::kHosts, [&](Communicator& world) {
          const auto sharded = TrainSharded<double>(world, OneCopy(true), 4);
          Expect(sharded == TrainUnsharded<double>(world, 4), "the same bits");
        }) == Nothing(size));
}

TEST_CASE("the ranks of a host share one copy and different hosts have different copies") {
  std::vector<const float*> places(5);
  CHECK(OnRanks(5, Backend::kHosts, [&](Communicator& world) {
          Moments<float> model(kCounts);
          model.value(3)[0] = static_cast<float>(world.rank());
          ShardedOptimizer optimizer(world, model, OneCopy(true));
          Expect(model.value(3)[0] == 0, "rank 0's values");
          places[static_cast<size_t>(world.rank())] = model.value(3);
          world.Barrier();
        }) == Nothing(5));
  CHECK(places[0] == places[1]);
  CHECK(places[2] == places[3]);
  CHECK(places[0] != places[2]);
  CHECK(places[2] != places[4]);
}

// Hosts with different numbers of ranks add norms in different orders.
TEST_CASE("with one copy per host clipped training has the same bits on all hosts") {
  std::vector<std::vector<float>> values(5);
  CHECK(OnRanks(5, Backend::kHosts, [&](Communicator& world) {
          Moments<float> model(kCounts);
          ShardedOptions options = OneCopy(true);
          options.max_gradient_norm = 0.1;
          ShardedOptimizer optimizer(world, model, options);
          for (int step = 0; step < 3; ++step) {
            model.Backward(world.rank(), step);
            optimizer.Step();
          }
          Expect(*optimizer.gradient_norm() > 0.1, "a norm that is clipped");
          values[static_cast<size_t>(world.rank())] = model.AllValues();
          Expect(optimizer.statistics().total.steps == 3, "steps that are counted");
        }) == Nothing(5));
  for (int rank = 1; rank < 5; ++rank) CHECK(values[static_cast<size_t>(rank)] == values[0]);
}

TEST_CASE("with one copy per host any rank can export the whole state") {
  CHECK(OnRanks(5, Backend::kHosts, [&](Communicator& world) {
          Moments<float> model(kCounts), alike(kCounts);
          ShardedOptimizer optimizer(world, model, OneCopy(true));
          ShardedOptimizer other(world, alike);
          for (ShardedOptimizer* each : {&optimizer, &other}) {
            (each == &optimizer ? model : alike).Backward(world.rank(), 0);
            each->Step();
          }
          std::vector<StateBuffer> expected = other.ExportState();
          for (const int root : {-1, 0, 3, 4}) {
            const bool all = root < 0;
            std::vector<StateBuffer> state =
                all ? optimizer.ExportState() : optimizer.ExportState(root);
            if (!all && world.rank() != root) continue;
            Expect(state.size() == expected.size(), "all of it");
            for (size_t i = 0; i < state.size(); ++i) {
              Expect(state[i].name == expected[i].name, "the names");
              const bool wide = state[i].dtype == DType::kF64;
              for (uint64_t k = 0; wide && k < state[i].count; ++k) {
                const double mine = static_cast<double*>(state[i].buffer().data)[k];
                const double its = static_cast<double*>(expected[i].buffer().data)[k];
                Expect(std::abs(mine - its) <= 1e-6 * std::abs(its), "the second moments");
              }
            }
          }
          std::vector<StateBuffer> state = optimizer.ExportState();
          optimizer.ImportState(state);
          Expect(optimizer.ExportState()[0].memory == state[0].memory, "there and back");
        }) == Nothing(5));
}

TEST_CASE("with one copy the pages of the original values are freed until the values return") {
  CHECK(OnRanks(2, Backend::kShm, [&](Communicator& world) {
          Moments<float> model({1 << 20});
          const float* before = model.value(0);
          const float last = before[(1 << 20) - 4095];
          {
            ShardedOptimizer optimizer(world, model, OneCopy(true));
            Expect(last != 0 && model.value(0)[(1 << 20) - 4095] == last, "the value has moved");
            Expect(before[(1 << 20) - 4095] == 0, "and is here no more");
          }
          Expect(before[(1 << 20) - 4095] == last, "and has come back");
        }) == Nothing(2));
}

TEST_CASE("all ranks start from the values of rank 0 and get the values back at the end") {
  const bool one_copy = GENERATE(false, true);
  CHECK(OnRanks(3, Backend::kShm, [&](Communicator& world) {
          Moments<float> model({5, 100});
          const float* before = model.value(1);
          model.value(1)[99] = static_cast<float>(world.rank() + 40);
          {
            ShardedOptimizer optimizer(world, model, OneCopy(one_copy));
            Expect(model.value(1) != before, "the values have moved");
            Expect(model.value(1)[99] == 40, "rank 0's value");
            auto place = reinterpret_cast<uint64_t>(model.value(1));
            std::vector<uint64_t> places(3);
            world.AllGather(Buffer(&place, 1), Buffer(places.data(), 3));
            Expect((places[0] == places[1]) == one_copy, "who shares memory");
            world.Barrier();
            model.Backward(0, 0);
            optimizer.Step();
            world.Barrier();
          }
          Expect(model.value(1) == before, "the values are back");
          Expect(model.value(1)[99] != 40, "as the step left them");
        }) == Nothing(3));
}

TEST_CASE("values in flight arrive before the destructor moves the values back") {
  std::vector<std::vector<float>> values(4);
  CHECK(OnRanks(4, Backend::kHosts, [&](Communicator& world) {
          const size_t count = 300'000;
          ShardedOptions options;
          options.overlap_forward = true;
          for (int round = 0; round < 5; ++round) {
            Moments<float> model({count, 7, count});
            {
              ShardedOptimizer optimizer(world, model, options);
              model.Backward(world.rank(), round);
              optimizer.Step();
            }
            values[static_cast<size_t>(world.rank())] = model.AllValues();
            world.Barrier();
            for (const auto& each : values) Expect(each == values[0], "the same on all ranks");
            world.Barrier();
          }
        }) == Nothing(4));
}

// --- copies of the state ------------------------------------------------------------------------

TEST_CASE("a step copies the state that it makes, not before all ranks have begun it") {
  const Backend backend = GENERATE(Backend::kShm, Backend::kCopying, Backend::kHosts);
  std::atomic<int> arrived = 0;
  CHECK(OnRanks(3, backend, [&](Communicator& world) {
          Moments<float> model(kCounts);
          ShardedOptimizer optimizer(world, model);
          detail::OptimizerShards shards(optimizer);
          std::vector<std::string> copies;
          shards.ForOwn([&](const auto&, const std::vector<Buffer>& columns) {
            for (size_t c = 1; c < columns.size(); ++c)
              copies.emplace_back(columns[c].bytes(), '?');
          });
          std::vector<void*> places;
          for (std::string& copy : copies) places.push_back(copy.data());
          for (int step = 0; step < 4; ++step) {
            const bool asks = step != 1;
            int arrived_before = -1;
            shards.CopyStateInStep(
                asks ? places : std::vector<void*>(), [&] { arrived_before = arrived; });
            model.Backward(world.rank(), step);
            if (world.rank() == step % 3) std::this_thread::sleep_for(20ms);
            ++arrived;
            optimizer.Step();
            Expect(shards.StateIsCopied() == asks, "a copy when it is asked for");
            if (!asks) continue;
            Expect(arrived_before >= 3 * (step + 1), "all ranks have begun the step");
            size_t next = 0;
            shards.ForOwn([&](const auto&, const std::vector<Buffer>& columns) {
              for (size_t c = 1; c < columns.size(); ++c)
                Expect(
                    copies[next++] ==
                        std::string(static_cast<char*>(columns[c].data), columns[c].bytes()),
                    "the state after the step");
            });
          }
          std::vector<StateBuffer> state = optimizer.ExportState();
          optimizer.ImportState(state);
          Expect(!shards.StateIsCopied(), "other state has been set");
        }) == Nothing(3));
}

TEST_CASE("a wrong number of places for copies of the state is refused") {
  CHECK(
      OnRanks(
          2, Backend::kShm,
          [](Communicator& world) {
            Moments<float> model({64, 64});
            ShardedOptimizer optimizer(world, model);
            char place;
            detail::OptimizerShards(optimizer).CopyStateInStep({&place}, [] {});
          }) ==
      Texts(
          2,
          "copies of the state in a step: found 1 places, expected 2 for 1 slices with 2 slots"));
}

// --- frozen parameters --------------------------------------------------------------------------

TEST_CASE("a frozen parameter is not updated and the others match training without shards") {
  const Backend backend = GENERATE(Backend::kShm, Backend::kCopying);
  const double most = GENERATE(0.0, 0.5);
  const bool marks = GENERATE(false, true);
  CHECK(OnRanks(2, backend, [&](Communicator& world) {
          Moments<float> model({5, 900, 3}), other({5, 900, 3});
          ShardedOptions options;
          options.max_gradient_norm = most;
          DistributedOptions unsharded;
          unsharded.max_gradient_norm = most;
          model.parameters()[1].requires_gradient = false;
          other.parameters()[1].requires_gradient = false;
          std::vector<float> before(model.value(1), model.value(1) + 900);
          ShardedOptimizer optimizer(world, model, options);
          DistributedOptimizer reference(world, other, unsharded);
          for (int step = 0; step < 3; ++step) {
            model.Backward(world.rank(), step);
            for (const size_t i : {0, 2})
              std::memcpy(
                  other.gradient(i), model.gradient(i), other.parameters()[i].gradient.bytes());
            if (marks)
              for (const size_t i : {2, 0}) optimizer.MarkReady(i);
            optimizer.Step(), reference.Step();
            if (most > 0)
              Expect(
                  std::abs(*optimizer.gradient_norm() - *reference.gradient_norm()) < 1e-5,
                  "its gradient is not in the norm");
          }
          Expect(std::equal(before.begin(), before.end(), model.value(1)), "it is as it was");
          const auto values = model.AllValues(), expected = other.AllValues();
          for (size_t k = 0; k < values.size(); ++k)
            Expect(std::abs(values[k] - expected[k]) < 1e-5, "the values");
          for (const StateBuffer& state : optimizer.ExportState())
            if (state.name == "first/p1")
              Expect(state.memory == std::vector<uint64_t>(450), "its state is as it was");
        }) == Nothing(2));
}

TEST_CASE("a parameter frozen on one rank only or after wrapping is refused by name") {
  const Texts texts = OnRanks(2, Backend::kShm, [](Communicator& world) {
    Moments<float> model({4, 5});
    model.parameters()[1].requires_gradient = world.rank() == 0;
    ShardedOptimizer optimizer(world, model);
  });
  for (const std::string& text : texts)
    CHECK(
        text ==
        "ShardedOptimizer: parameter 'p1' is frozen on rank 1 and not on rank 0; expected the same "
        "requires_gradient on all ranks");
  CHECK(OnRanks(2, Backend::kShm, [](Communicator& world) {
          Moments<float> model({4, 5});
          ShardedOptimizer optimizer(world, model);
          model.parameters()[1].requires_gradient = false;
          std::string text;
          try {
            optimizer.Step();
          } catch (const Error& error) {
            text = error.what();
          }
          Expect(
              text ==
                  "ShardedOptimizer: parameter 'p1' was frozen after it was wrapped; set "
                  "requires_gradient back and change it before wrapping, or use "
                  "DistributedOptimizer",
              text);
          model.parameters()[1].requires_gradient = true;
          optimizer.Step();
        }) == Nothing(2));
}

// --- norms --------------------------------------------------------------------------------------

TEST_CASE("gradients are clipped by their common norm before the update") {
  const Backend backend = GENERATE(Backend::kShm, Backend::kCopying);
  const bool one_copy = GENERATE(false, true);
  if (one_copy && backend != Backend::kShm) return;
  CHECK(OnRanks(3, backend, [&](Communicator& world) {
          ShardedOptions options = OneCopy(one_copy);
          options.max_gradient_norm = 2.5;
          DistributedOptions unsharded;
          unsharded.max_gradient_norm = 2.5;
          Moments<double> model(kCounts), other(kCounts);
          ShardedOptimizer optimizer(world, model, options);
          DistributedOptimizer reference(world, other, unsharded);
          for (int step = 0; step < 3; ++step) {
            model.Backward(world.rank(), step), other.Backward(world.rank(), step);
            optimizer.Step(), reference.Step();
            const double norm = *reference.gradient_norm();
            Expect(norm > 2.5, "it is clipped");
            Expect(std::abs(*optimizer.gradient_norm() - norm) < 1e-9 * norm, "the norm");
          }
          const auto values = model.AllValues(), expected = other.AllValues();
          for (size_t k = 0; k < values.size(); ++k)
            Expect(std::abs(values[k] - expected[k]) < 1e-9, "the values");
        }) == Nothing(3));
}

// An optimizer with a rate per parameter that depends on its norms, as in LARS.
class Lars : public Moments<double> {
 public:
  using Moments::Moments;
  bool needs_norms() const override { return true; }
  void SetNorms(const std::vector<ParameterNorms>& norms) override { norms_ = norms; }
  void StepSlice(const dtrun::ParameterSlice& slice) override {
    const ParameterNorms& norms = norms_[slice.parameter];
    const double rate = norms.gradient > 0 ? 0.1 * norms.value / norms.gradient : 0.1;
    for (uint64_t k = 0; k < slice.count; ++k)
      static_cast<double*>(slice.value)[k] -= rate * static_cast<const double*>(slice.gradient)[k];
  }

 private:
  std::vector<ParameterNorms> norms_;
};

TEST_CASE("an optimizer that needs norms gets the norms of whole parameters") {
  const int size = GENERATE(1, 2, 4);
  const Backend backend = GENERATE(Backend::kShm, Backend::kCopying);
  CHECK(OnRanks(size, backend, [&](Communicator& world) {
          Lars model(kCounts), other(kCounts);
          ShardedOptimizer optimizer(world, model);
          DistributedOptimizer reference(world, other);
          for (int step = 0; step < 3; ++step) {
            model.Backward(world.rank(), step), other.Backward(world.rank(), step);
            optimizer.Step(), reference.Step();
          }
          const auto values = model.AllValues(), expected = other.AllValues();
          for (size_t k = 0; k < values.size(); ++k)
            Expect(std::abs(values[k] - expected[k]) < 1e-12, "the values");
        }) == Nothing(size));
}

class LarsOfHalf : public Moments<double> {
 public:
  LarsOfHalf() : Moments({2}) {
    parameters()[0].value.dtype = DType::kF16;
    parameters()[0].gradient = Buffer(half_, 2, DType::kF16);
  }
  bool needs_norms() const override { return true; }

 private:
  uint16_t half_[2] = {};
};

TEST_CASE("without shards a parameter without gradient has norm 0 and 16-bit types are refused") {
  CHECK(OnRanks(2, Backend::kShm, [](Communicator& world) {
          Lars model({4, 5});
          model.parameters()[0].requires_gradient = false;
          DistributedOptimizer optimizer(world, model);
          const std::vector<double> before(model.value(0), model.value(0) + 4);
          std::fill_n(model.gradient(1), 5, 1.0);
          optimizer.Step();
          Expect(std::equal(before.begin(), before.end(), model.value(0)), "it is as it was");
        }) == Nothing(2));
  Lars alone({4});  // a null gradient buffer
  alone.Step();
  CHECK(alone.AllValues() == Lars({4}).AllValues());
  LarsOfHalf half;
  CHECK_THROWS_WITH(
      half.Step(),
      "the optimizer needs norms: the value of parameter 'p0' is f16; expected f32 or f64");
}

// --- statistics ---------------------------------------------------------------------------------

TEST_CASE("a rank that others wait for counts as late in a sharded step") {
  const Backend backend = GENERATE(Backend::kShm, Backend::kCopying);
  std::atomic<ops::FlightRecorder*> first{nullptr};
  CHECK(OnRanks(2, backend, [&](Communicator& world) {
          dtrun_communicator& handle = *world.handle();
          std::vector<float> values(300'000);
          runtime::ParameterShards shards(
              *handle.communicator, {{"p", Buffer(values.data(), values.size())}}, {});
          std::memset(shards.gradient(0).data, 0, shards.gradient(0).bytes());
          world.Barrier();
          if (world.rank() == 0) first = handle.owner.recorder;
          if (world.rank() == 1) ReturnWhenWaitedFor(first);
          shards.Step(1, [](const runtime::ParameterSlice&) {});
          world.Barrier();
          const base::StepTotals& last = shards.meter().last();
          Expect(last.steps == 1 && last.late_ns <= last.exposed_ns, "a part of a step");
          const ops::Lateness& late = shards.meter().total_lateness();
          if (world.rank() == 0) Expect(last.late_ns > 0, "rank 0 waits");
          if (world.rank() == 0)
            Expect(late.by_rank.size() == 2 && late.by_rank[1].count() > 0, "for rank 1");
          shards.WaitForAll();
          const base::Duration waited = late.total;
          shards.WaitForAll();
          Expect(late.total == waited, "a wait counts once");
        }) == Nothing(2));
}

// --- state --------------------------------------------------------------------------------------

struct ExportedState {
  std::vector<float> values;
  std::vector<StateBuffer> state;
};

// Sets gradients that are exact and equal on all ranks. Their average does not depend on the number
// of ranks.
void EqualBackward(Moments<float>& model, int step) {
  for (size_t i = 0; i < kCounts.size(); ++i)
    for (size_t k = 0; k < kCounts[i]; ++k)
      model.gradient(i)[k] = static_cast<float>((k + i + static_cast<size_t>(step)) % 5);
}

ExportedState TrainAndExport(int size, Backend backend, int steps, std::optional<int> root) {
  ExportedState saved;
  CHECK(OnRanks(size, backend, [&](Communicator& world) {
          Moments<float> model(kCounts);
          ShardedOptimizer optimizer(world, model);
          for (int step = 0; step < steps; ++step) EqualBackward(model, step), optimizer.Step();
          auto state = optimizer.ExportState(root);
          const bool mine = !root || world.rank() == *root;
          Expect(state.size() == (mine ? 2 * kCounts.size() + 1 : 0), "what is exported");
          if (world.rank() == root.value_or(0)) saved = {model.AllValues(), std::move(state)};
        }) == Nothing(size));
  return saved;
}

// Does two steps from the saved state. Returns the values.
std::vector<float> GoOn(int size, Backend backend, ExportedState& saved, bool one_copy) {
  std::vector<float> values;
  std::vector<std::vector<StateBuffer>> copies(static_cast<size_t>(size), saved.state);
  CHECK(OnRanks(size, backend, [&](Communicator& world) {
          Moments<float> model(kCounts);
          uint64_t done = 0;
          for (const Parameter& parameter : model.parameters()) {
            if (parameter.value.count > 0)
              std::memcpy(
                  parameter.value.data, saved.values.data() + done, parameter.value.bytes());
            done += parameter.value.count;
          }
          ShardedOptimizer optimizer(world, model, OneCopy(one_copy));
          optimizer.ImportState(copies[static_cast<size_t>(world.rank())]);
          for (int step = 3; step < 5; ++step) EqualBackward(model, step), optimizer.Step();
          if (world.rank() == 0) values = model.AllValues();
          world.Barrier();
        }) == Nothing(size));
  return values;
}

TEST_CASE("state of four ranks can be loaded by any number of ranks") {
  const Backend from = GENERATE(Backend::kShm, Backend::kHosts);
  ExportedState saved =
      TrainAndExport(4, from, 3, GENERATE(std::optional<int>(), std::optional(2)));
  const ExportedState expected = TrainAndExport(4, Backend::kShm, 5, std::nullopt);
  for (const int size : {1, 2, 3}) {
    CHECK(GoOn(size, Backend::kShm, saved, false) == expected.values);
    CHECK(GoOn(size, Backend::kShm, saved, true) == expected.values);
    CHECK(GoOn(size, Backend::kCopying, saved, false) == expected.values);
  }
}

TEST_CASE("state has the names and values of the optimizer without shards") {
  const ExportedState saved = TrainAndExport(2, Backend::kShm, 3, std::nullopt);
  Moments<float> model(kCounts);
  std::vector<std::vector<float>> gradients;
  for (const size_t count : kCounts) gradients.emplace_back(count);
  for (size_t i = 0; i < kCounts.size(); ++i)
    model.parameters()[i].gradient = Buffer(gradients[i].data(), kCounts[i]);
  for (int step = 0; step < 3; ++step) EqualBackward(model, step), model.Step();
  CHECK(model.AllValues() == saved.values);
  const auto state = model.state();
  REQUIRE(state.size() == saved.state.size());
  for (size_t s = 0; s < state.size(); ++s) {
    StateBuffer each = saved.state[s];
    CHECK(each.name == state[s].name);
    REQUIRE(each.buffer().bytes() == state[s].buffer.bytes());
    if (each.count > 0)
      CHECK(std::memcmp(each.memory.data(), state[s].buffer.data, each.buffer().bytes()) == 0);
  }
  CHECK(state[0].name == "first/p0");
  CHECK(state.back().name == "steps");
}

TEST_CASE("state that does not match is refused by name") {
  CHECK(OnRanks(1, Backend::kShm, [](Communicator& world) {
          Moments<float> model({3, 2});
          ShardedOptimizer optimizer(world, model);
          const auto refusal = [&](const std::function<void(std::vector<StateBuffer>&)>& change) {
            auto state = optimizer.ExportState();
            change(state);
            try {
              optimizer.ImportState(state);
            } catch (const Error& error) {
              return std::string(error.what());
            }
            return std::string();
          };
          const auto is = [](const std::string& found, const std::string& expected) {
            Expect(found == expected, expected + ", but: " + found);
          };
          is(refusal([](auto& state) { state.pop_back(); }),
             "ImportState: state 'steps' is missing");
          is(refusal([](auto& state) { state[1].count = 1; }),
             "ImportState: 'first/p1' is f32[1]; expected f32[2]");
          is(refusal([](auto& state) { state[2].dtype = DType::kF32; }),
             "ImportState: 'second/p0' is f32[3]; expected f64[3]");
          is(refusal([](auto& state) {
               state.push_back(state[0]);
               state.back().name = "third/p0";
             }),
             "ImportState: 'third/p0' is unknown to this optimizer, or listed more than once");
          is(refusal([](auto&) {}), "");
        }) == Nothing(1));
}

// --- errors -------------------------------------------------------------------------------------

TEST_CASE("models that differ between ranks are an error on all ranks") {
  const Backend backend = GENERATE(Backend::kShm, Backend::kCopying);
  const Texts texts = OnRanks(3, backend, [](Communicator& world) {
    Moments<float> model({4, world.rank() == 1 ? size_t{7} : size_t{6}, 5});
    ShardedOptimizer optimizer(world, model);
  });
  for (const std::string& text : texts)
    CHECK(
        text ==
        "the ranks have different parameters in the sharded optimizer: parameter 1 is 'p1' f32[6] "
        "on ranks 0 and 2, 'p1' f32[7] on rank 1");
}

TEST_CASE("options that differ between ranks are an error on all ranks") {
  const auto disagree = [](const std::function<void(ShardedOptions&)>& set) {
    const Texts texts = OnRanks(2, Backend::kShm, [&](Communicator& world) {
      Moments<float> model({4});
      ShardedOptions options;
      if (world.rank() == 1) set(options);
      ShardedOptimizer optimizer(world, model, options);
    });
    CHECK(texts[0] == texts[1]);
    return texts[0];
  };
  CHECK_THAT(
      disagree([](auto& o) { o.max_gradient_norm = 1; }),
      Contains("the ranks have different options of the sharded optimizer: ") &&
          Contains("max_gradient_norm 1") && Contains("on rank 1"));
  CHECK_THAT(
      disagree([](auto& o) { o.one_copy_per_host = true; }),
      Contains("one copy per host") && Contains("on rank 1") &&
          Contains("a copy per rank, state of the parameter's dtype f64 on rank 0"));
  CHECK_THAT(disagree([](auto& o) { o.op = ReduceOp::kSum; }), Contains("sum in buckets of"));
  CHECK_THAT(
      disagree([](auto& o) { o.overlap_forward = true; }),
      Contains("the ranks have different options of the sharded optimizer: ") &&
          Contains(", overlap_forward, state") && Contains("on rank 1"));
}

TEST_CASE("messages describe buckets of automatic size") {
  const Texts texts = OnRanks(2, Backend::kCopying, [](Communicator& world) {
    world.handle()->reducer_defaults.bucket_bytes = 0;
    Moments<float> model({4});
    ShardedOptions options;
    if (world.rank() == 1) options.bucket_bytes = 4096;
    ShardedOptimizer optimizer(world, model, options);
  });
  CHECK_THAT(
      texts[0], Contains("average in buckets of automatic size, a copy per rank") &&
                    Contains("average in buckets of 4096 bytes, a copy per rank"));
}

// An optimizer that cannot update slices.
class Whole : public Optimizer {
 public:
  std::vector<Parameter>& parameters() override { return list_; }
  std::vector<NamedBuffer> state() override { return {}; }
  void Step() override {}

 private:
  std::vector<Parameter> list_;
};

TEST_CASE("optimizers and options that cannot be sharded are refused by name") {
  const auto refusal = [](Backend backend, const std::function<void(Communicator&)>& rank_main) {
    return OnRanks(2, backend, rank_main)[0];
  };
  CHECK_THAT(
      refusal(
          Backend::kShm,
          [](Communicator& world) {
            Whole whole;
            ShardedOptimizer optimizer(world, whole);
          }),
      Contains("the update of the inner optimizer cannot be cut into slices"));
  CHECK_THAT(
      refusal(
          Backend::kCopying,
          [](Communicator& world) {
            Moments<float> model({4});
            ShardedOptimizer optimizer(world, model, OneCopy(true));
          }),
      Contains("one_copy_per_host") && Contains("share a host"));
  const auto option = [&](const std::function<void(ShardedOptions&)>& set) {
    return refusal(Backend::kShm, [&](Communicator& world) {
      Moments<float> model({4});
      ShardedOptions options;
      set(options);
      ShardedOptimizer optimizer(world, model, options);
    });
  };
  CHECK(option([](auto& o) {
          o.op = ReduceOp::kMax;
        }) == "ShardedOptimizer: the reduce op is max; expected average or sum");
  CHECK_THAT(
      option([](auto& o) { o.max_gradient_norm = -1; }),
      Contains("ShardedOptimizer: max_gradient_norm is -1"));
}

TEST_CASE("a gradient that is marked twice is named in an error with advice") {
  const Texts texts = OnRanks(2, Backend::kCopying, [](Communicator& world) {
    Moments<float> model({4, 2});
    ShardedOptimizer optimizer(world, model);
    optimizer.MarkReady(1);
    std::string text;
    try {
      optimizer.MarkReady(1);
    } catch (const Error& error) {
      text = error.what();
    }
    try {
      optimizer.ZeroGradients();
    } catch (const Error& error) {
      text += std::string("; ") + error.what();
    }
    optimizer.Step();
    optimizer.ZeroGradients();
    optimizer.MarkReady(1);
    optimizer.Step();
    throw std::runtime_error(text);
  });
  for (const std::string& text : texts)
    CHECK_THAT(
        text, Contains("the gradient of 'p1' was marked ready more than once") &&
                  Contains("call Step() before") &&
                  Contains("ZeroGradients() between MarkReady()"));
}

TEST_CASE("parameters with equal names or shared memory or wrong gradients are refused by name") {
  const auto refusal = [](const std::function<void(Moments<float>&)>& change) {
    return OnRanks(1, Backend::kShm, [&](Communicator& world) {
      Moments<float> model({4, 4});
      change(model);
      ShardedOptimizer optimizer(world, model);
    })[0];
  };
  CHECK(
      refusal([](auto& model) { model.parameters()[1].value = model.parameters()[0].value; }) ==
      "ShardedOptimizer: parameters 'p0' and 'p1' have the same memory (tied weights), and would "
      "come apart; use DistributedOptimizer");
  CHECK(
      refusal([](auto& model) {
        model.parameters()[1].value = model.parameters()[0].value.Slice(2, 2);
      }) ==
      "ShardedOptimizer: parameters 'p0' and 'p1' share a part of their memory; expected all of "
      "it (tied weights) or none");
  CHECK(
      refusal([](auto& model) { model.parameters()[1].name = "p0"; }) ==
      "ShardedOptimizer: parameters 0 and 1 are both called 'p0'; every parameter needs a name "
      "of its own");
  CHECK(refusal([](auto& model) {
          model.parameters()[1].name.clear();
        }) == "ShardedOptimizer: parameter 1 has no name; every parameter needs one");
  std::vector<float> gradient(4);
  CHECK(
      refusal([&](auto& model) { model.parameters()[1].gradient = Buffer(gradient.data(), 3); }) ==
      "ShardedOptimizer: the gradient of 'p1' is f32[3] and its value f32[4]; expected the same "
      "count and dtype");
  CHECK_THAT(
      refusal([&](auto& model) {
        model.parameters()[0].gradient = Buffer(gradient.data(), 4, DType::kI32);
      }),
      Contains("the gradient of 'p0' is i32[4] and its value f32[4]"));
  CHECK(refusal([&](auto& model) {
          model.parameters()[0].gradient = Buffer(gradient.data(), 4);
        }).empty());
}

TEST_CASE("a step without a backward pass is refused after an earlier step had marks") {
  const Backend backend = GENERATE(Backend::kShm, Backend::kCopying);
  CHECK(OnRanks(2, backend, [](Communicator& world) {
          Moments<float> model({4, 2});
          ShardedOptimizer optimizer(world, model);
          optimizer.Step();
          optimizer.Step();  // a trainer without marks
          optimizer.MarkReady(1);
          optimizer.Step();
          const auto values = model.AllValues();
          std::string text;
          try {
            optimizer.Step();
          } catch (const Error& error) {
            text = error.what();
          }
          Expect(
              text ==
                  "Step() without a backward pass: no gradient was marked since the last step, "
                  "while earlier steps had marks; call MarkReady() for what backward has computed",
              text);
          Expect(model.AllValues() == values, "nothing has changed");
          optimizer.MarkReady(0);
          optimizer.Step();
        }) == Nothing(2));
}

class FailingMoments : public Moments<float> {
 public:
  using Moments::Moments;
  void StepSlice(const dtrun::ParameterSlice&) override { throw std::runtime_error("no rate"); }
};

TEST_CASE("an update that throws on one rank does not stop the step of the others") {
  const Texts texts = OnRanks(3, Backend::kShm, [](Communicator& world) {
    Moments<float> good({1000});
    FailingMoments bad({1000});
    Optimizer& inner = world.rank() == 1 ? static_cast<Optimizer&>(bad) : good;
    ShardedOptimizer optimizer(world, inner);
    optimizer.Step();
  });
  CHECK(texts == Texts{"", "no rate", ""});
}

TEST_CASE("two optimizers of one process do not disturb each other") {
  CHECK(OnRanks(2, Backend::kShm, [](Communicator& world) {
          Moments<float> first({5, 300}), second({70'000}), alone_first({5, 300}),
              alone_second({70'000});
          ShardedOptimizer one(world, first), other(world, second);
          DistributedOptimizer a(world, alone_first), b(world, alone_second);
          for (int step = 0; step < 3; ++step) {
            first.Backward(world.rank(), step), second.Backward(world.rank(), step + 1);
            alone_first.Backward(world.rank(), step), alone_second.Backward(world.rank(), step + 1);
            other.MarkReady(0), one.MarkReady(1);
            one.Step(), other.Step(), a.Step(), b.Step();
          }
          Expect(first.AllValues() == alone_first.AllValues(), "the one");
          Expect(second.AllValues() == alone_second.AllValues(), "the other");
        }) == Nothing(2));
}

}  // namespace
}  // namespace dtrun::testing
