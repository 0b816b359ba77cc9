// Uneven data: ranks without more data take part without gradients until all ranks have joined.

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/include/optimizer_rig.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;

// One epoch of a rank: `batches` batches, each with gradients of rank + 1.
int Epoch(DistributedOptimizer& optimizer, Model& model, int rank, int batches) {
  for (int batch = 0; batch < batches; ++batch) {
    optimizer.ZeroGradients();
    model.Backward(static_cast<float>(rank + 1));
    MarkAll(optimizer);
    optimizer.Step();
  }
  return optimizer.Join();
}

// The change of every weight in an epoch.
float ChangeOf(const std::vector<int>& batches, ReduceOp op) {
  float change = 0;
  for (int step = 0;; ++step) {
    float sum = 0, with_data = 0;
    for (size_t rank = 0; rank < batches.size(); ++rank)
      if (step < batches[rank]) sum += static_cast<float>(rank + 1), with_data += 1;
    if (with_data == 0) return change;
    change -= op == ReduceOp::kSum ? sum : sum / with_data;
  }
}

TEST_CASE("ranks without data wait in Join and the average divides by the ranks with data") {
  const auto batches = GENERATE(
      std::vector<int>{3}, std::vector<int>{1, 4}, std::vector<int>{2, 2},
      std::vector<int>{5, 0, 2}, std::vector<int>{3, 1, 2, 6});
  const ReduceOp op = GENERATE(ReduceOp::kAverage, ReduceOp::kSum);
  const int size = static_cast<int>(batches.size());
  const int most = *std::max_element(batches.begin(), batches.end());
  const int last =
      size - 1 -
      static_cast<int>(std::find(batches.rbegin(), batches.rend(), most) - batches.rbegin());
  CHECK(OnRanks(size, [&](Communicator& world) {
          Model model({3, size == 2 ? 300'000u : 300u, 2});
          DistributedOptions options;
          options.op = op;
          options.check_every = 1;  // compares the parameters of all ranks in every step
          DistributedOptimizer optimizer(world, model, options);
          const int mine = batches[static_cast<size_t>(world.rank())];
          for (int epoch = 1; epoch <= 2; ++epoch) {
            Expect(Epoch(optimizer, model, world.rank(), mine) == last, "the last that joined");
            const float expected = ChangeOf(batches, op) * static_cast<float>(epoch);
            for (size_t i = 0; i < 3; ++i)
              Expect(
                  std::abs(model.value(i).back() - expected) < 1e-4f,
                  "weight " + std::to_string(model.value(i).back()) + " for " +
                      std::to_string(expected));
            Expect(model.steps == most * epoch, "as many steps as the longest rank");
          }
        }) == Nothing(size));
}

TEST_CASE("the average of f16 and bf16 and f64 gradients divides by the ranks with data") {
  CHECK(OnRanks(4, [](Communicator& world) {
          // 16-bit floats: 1.0 is 0x3c00 and 0x3f80, 2.0 is 0x4000 in both.
          std::vector<uint16_t> half(5), brain(5), half_gradient(5), brain_gradient(5);
          std::vector<double> wide(5), wide_gradient(5);
          struct Fixed : Optimizer {
            std::vector<Parameter> list;
            std::vector<Parameter>& parameters() override { return list; }
            std::vector<NamedBuffer> state() override { return {}; }
            void Step() override {}
          } fixed;
          fixed.list = {
              {"half", Buffer(half.data(), 5, DType::kF16),
               Buffer(half_gradient.data(), 5, DType::kF16)},
              {"brain", Buffer(brain.data(), 5, DType::kBF16),
               Buffer(brain_gradient.data(), 5, DType::kBF16)},
              {"wide", Buffer(wide.data(), 5), Buffer(wide_gradient.data(), 5)}};
          DistributedOptimizer optimizer(world, fixed);
          if (world.rank() != 2) {
            optimizer.Join();
            return;
          }
          half_gradient.assign(5, 0x4000), brain_gradient.assign(5, 0x4000);
          wide_gradient.assign(5, 7);
          optimizer.Synchronize();
          Expect(half_gradient[4] == 0x4000, "f16");
          Expect(brain_gradient[4] == 0x4000, "bf16");
          Expect(wide_gradient[4] == 7, "f64");
          optimizer.Step();
          optimizer.Join();
        }) == Nothing(4));
}

TEST_CASE("a rank that joins in the middle of an aggregation contributes its partial gradients") {
  CHECK(OnRanks(2, [](Communicator& world) {
          Model model;
          DistributedOptions options;
          options.backward_passes_per_step = 4;
          DistributedOptimizer optimizer(world, model, options);
          const int batches = world.rank() == 0 ? 6 : 8;
          for (int batch = 0; batch < batches; ++batch) {
            if (batch % 4 == 0) optimizer.ZeroGradients();
            model.Backward(1);
            MarkAll(optimizer);
            if (batch % 4 == 3) optimizer.Step();
          }
          Expect(optimizer.Join() == 1, "rank 0 has made the step with the others");
          // The first step is 4. The second step is 3, the average of 2 and 4.
          Expect(model.value(0)[0] == -7, "nothing is lost");
        }) == Nothing(2));
}

TEST_CASE("clipping and predivision and averaged passes work after some ranks have joined") {
  CHECK(OnRanks(4, [](Communicator& world) {
          Model model({1, 1});
          DistributedOptions options;
          options.backward_passes_per_step = 2;
          options.average_aggregated_gradients = true;
          options.gradient_predivide_factor = 2;
          options.max_gradient_norm = 5;
          DistributedOptimizer optimizer(world, model, options);
          if (world.rank() >= 2) {
            optimizer.Join();
          } else {
            optimizer.ZeroGradients();
            for (int pass = 0; pass < 2; ++pass) {
              model.gradient(0)[0] += world.rank() == 0 ? 12 : 0;  // 6 and 8 on average
              model.gradient(1)[0] += world.rank() == 0 ? 0 : 16;
              MarkAll(optimizer);
            }
            optimizer.Step();
            Expect(std::abs(*optimizer.gradient_norm() - 10) < 1e-5, "the norm");
            optimizer.Join();
          }
          Expect(std::abs(model.value(0)[0] + 3) < 1e-5f, "the first, clipped");
          Expect(std::abs(model.value(1)[0] + 4) < 1e-5f, "the second, clipped");
        }) == Nothing(4));
}

TEST_CASE("the callback of Join runs before each step of the other ranks") {
  CHECK(OnRanks(2, [](Communicator& world) {
          Model model;
          DistributedOptimizer optimizer(world, model);
          int rates = 0;
          if (world.rank() == 1) {
            for (int step = 0; step < 3; ++step) ++rates, optimizer.Step();
          }
          optimizer.Join([&] { ++rates; });
          Expect(rates == 3 && model.steps == 3, "once before each step");
        }) == Nothing(2));
}

TEST_CASE("local parameters of a rank in Join do not change") {
  CHECK(OnRanks(2, [](Communicator& world) {
          Model model;
          DistributedOptions options;
          options.local_parameters = {"p1"};
          DistributedOptimizer optimizer(world, model, options);
          Epoch(optimizer, model, world.rank(), 1 + 2 * world.rank());
          Expect(model.value(0)[0] == -1.5f - 2 - 2, "shared");
          Expect(model.value(1)[0] == (world.rank() == 0 ? -1.0f : -6.0f), "local");
        }) == Nothing(2));
}

TEST_CASE("Join names a rank that never comes") {
  const Texts texts = OnRanks(
      2,
      [](Communicator& world) {
        Model model;
        DistributedOptimizer optimizer(world, model);
        if (world.rank() == 0) optimizer.Join();
      },
      std::chrono::seconds(1));
  CHECK_THAT(texts[0], Contains("waits for rank 1 to call it"));
}

TEST_CASE("after a mismatch every rank reports the calls of all ranks") {
  const bool gathers = GENERATE(true, false);
  const Texts texts = OnRanks(3, [&](Communicator& world) {
    std::vector<float> mine(4), all(12);
    if (world.rank() == 1)
      world.Barrier();  // as a rank that is done and waits
    else if (gathers)
      world.AllGather(Buffer(mine.data(), 4), Buffer(all.data(), 12));
    else
      world.Broadcast(Buffer(mine.data(), 4), 0);
  });
  for (const std::string& text : texts)
    CHECK_THAT(
        text, Contains(
                  gathers ? "ranks 0 and 2 called all_gather (f32, 4 elements"
                          : "ranks 0 and 2 called broadcast (f32, 4 elements, root 0)") &&
                  Contains("rank 1 called barrier"));
}

TEST_CASE("steps of other ranks override a Freeze of a rank that then joins") {
  CHECK(OnRanks(2, [](Communicator& world) {
          Model model;
          DistributedOptions options;
          options.check_every = 1;
          DistributedOptimizer optimizer(world, model, options);
          if (world.rank() == 1) optimizer.Freeze(0);
          Epoch(optimizer, model, world.rank(), world.rank() == 0 ? 3 : 0);
          Expect(model.value(0)[0] == -3, "the steps of rank 0, on both");
        }) == Nothing(2));
}

TEST_CASE("ranks that join together with different frozen parameters all get an error") {
  const Texts errors = OnRanks(3, [](Communicator& world) {
    Model model;
    DistributedOptimizer optimizer(world, model);
    Epoch(optimizer, model, world.rank(), 0);
    if (world.rank() == 2) optimizer.Freeze(1);
    optimizer.Join();
  });
  for (const std::string& error : errors)
    CHECK_THAT(error, Contains("parameter 'p1' is frozen on rank 2 and not on ranks 0, 1"));
}

TEST_CASE("gradient_norm of the last step is available after Join") {
  CHECK(OnRanks(2, [](Communicator& world) {
          Model model({1});
          DistributedOptions options;
          options.max_gradient_norm = 100;
          DistributedOptimizer optimizer(world, model, options);
          Epoch(optimizer, model, world.rank(), 1 + world.rank());
          Expect(optimizer.gradient_norm() == 2.0, "that of rank 1's second batch");
        }) == Nothing(2));
}

TEST_CASE("Join inside a NoSync scope is refused") {
  const Texts texts = OnRanks(1, [](Communicator& world) {
    Model model;
    DistributedOptimizer optimizer(world, model);
    const auto scope = optimizer.NoSync();
    optimizer.Join();
  });
  CHECK(texts[0] == "Join() under NoSync(); end its scope before");
}

}  // namespace
}  // namespace dtrun::testing
