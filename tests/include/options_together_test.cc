// All combinations of the optimizer's options, compared with one process that computes in double.

#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "tests/include/optimizer_rig.h"

namespace dtrun::testing {
namespace {

struct Case {
  int size = 2;
  int passes = 1;
  bool averages = false, predivides = false, clips = false, has_local = false, skips = false,
       marks_unused = false, joins = false, by_rows = false, as_dense = false;
};

constexpr int kSteps = 3;

// The gradient of parameter i on a rank, in a pass of a step. The value is exact in float.
double GradientOf(int rank, int step, int pass, size_t i) {
  return (rank + 1) * 0.5 + step + 2 * pass - static_cast<double>(i);
}

// Parameter 2 is unused on odd ranks, parameter 3 on all.
bool IsUsed(const Case& c, int rank, size_t i) {
  return !c.marks_unused || i < 2 || (i == 2 && rank % 2 == 0);
}
// With `joins`, the last rank has one step less.
int StepsOf(const Case& c, int rank) { return kSteps - (c.joins && rank == c.size - 1 ? 1 : 0); }
bool IsLocal(const Case& c, size_t i) { return c.has_local && i == 1; }

// The gradient of a rank in one step, before the reduction. With `skips`, a pass under NoSync comes
// first.
double SumOfPasses(const Case& c, int rank, int step, size_t i) {
  if (step >= StepsOf(c, rank)) return 0;
  double sum = 0;
  if (c.skips) sum += GradientOf(rank, step, 9, i);
  for (int pass = 0; pass < c.passes; ++pass) sum += GradientOf(rank, step, pass, i);
  return IsUsed(c, rank, i) ? sum : 0;
}

// The weights of `rank` after all steps: four parameters of one element.
std::vector<double> Expected(const Case& c, int rank) {
  std::vector<double> weights(4);
  for (int step = 0; step < kSteps; ++step) {
    int with_data = 0;
    for (int r = 0; r < c.size; ++r) with_data += step < StepsOf(c, r);
    if (with_data == 0) break;
    std::vector<double> reduced(4);
    double squares = 0;
    for (size_t i = 0; i < 4; ++i) {
      if (IsLocal(c, i)) continue;
      for (int r = 0; r < c.size; ++r) reduced[i] += SumOfPasses(c, r, step, i) / with_data;
      if (c.averages) reduced[i] /= c.passes;
      squares += reduced[i] * reduced[i];
    }
    const double norm = std::sqrt(squares);
    for (size_t i = 0; i < 4; ++i) {
      if (IsLocal(c, i))
        weights[i] -= SumOfPasses(c, rank, step, i);
      else
        weights[i] -= reduced[i] * (c.clips && norm > 2 ? 2 / norm : 1);
    }
  }
  return weights;
}

void Train(const Case& c, Communicator& world) {
  Model model({1, 1, 1, 1});
  DistributedOptions options;
  options.backward_passes_per_step = c.passes;
  options.average_aggregated_gradients = c.averages;
  options.gradient_predivide_factor = c.predivides ? 2 : 1;
  options.max_gradient_norm = c.clips ? 2 : 0;
  options.check_every = 2;
  options.sparse_as_dense = c.as_dense;
  if (c.has_local) options.local_parameters = {"p1"};
  if (c.by_rows) model.parameters()[0].row_length = 1;
  DistributedOptimizer optimizer(world, model, options);
  const int rank = world.rank();
  const auto backward = [&](int step, int pass) {
    for (size_t i = 4; i-- > 0;) {
      if (i == 0 && c.by_rows) {
        const int64_t row = 0;
        auto value = static_cast<float>(GradientOf(rank, step, pass, i));
        optimizer.MarkRows(0, &row, 1, Buffer(&value, 1));
      } else if (IsUsed(c, rank, i)) {
        *model.gradient(i) += static_cast<float>(GradientOf(rank, step, pass, i));
        optimizer.MarkReady(i);
      } else {
        optimizer.MarkUnused(i);
      }
    }
  };
  for (int step = 0; step < StepsOf(c, rank); ++step) {
    optimizer.ZeroGradients();
    if (c.skips) {
      const auto scope = optimizer.NoSync();
      backward(step, 9);
    }
    for (int pass = 0; pass < c.passes; ++pass) backward(step, pass);
    optimizer.Step();
  }
  if (c.joins) Expect(optimizer.Join() == std::max(0, c.size - 2), "the last that joined");
  const std::vector<double> expected = Expected(c, rank);
  for (size_t i = 0; i < 4; ++i)
    Expect(
        std::abs(static_cast<double>(model.value(i)[0]) - expected[i]) < 1e-4,
        "p" + std::to_string(i) + " of rank " + std::to_string(rank) + " is " +
            std::to_string(model.value(i)[0]) + " for " + std::to_string(expected[i]));
}

TEST_CASE("every combination of options trains like one process") {
  Case c;
  c.size = GENERATE(1, 2, 4);
  c.passes = GENERATE(1, 3);
  const int bits = GENERATE(range(0, 512));
  c.averages = bits & 1, c.predivides = bits & 2, c.clips = bits & 4, c.has_local = bits & 8;
  c.skips = bits & 16, c.marks_unused = bits & 32, c.joins = bits & 64;
  c.by_rows = bits & 128, c.as_dense = bits & 256;
  INFO("size " << c.size << ", passes " << c.passes << ", options " << bits);
  CHECK(OnRanks(c.size, [&](Communicator& world) { Train(c, world); }) == Nothing(c.size));
}

TEST_CASE("two independent jobs in one process do not disturb each other") {
  Case first, second;
  first.size = 2, first.passes = 3, first.clips = true;
  second.size = 3, second.joins = true, second.marks_unused = true;
  Texts of_second;
  std::thread other([&] {
    of_second = OnRanks(second.size, [&](Communicator& world) {
      for (int k = 0; k < 5; ++k) Train(second, world);
    });
  });
  const Texts of_first = OnRanks(first.size, [&](Communicator& world) {
    for (int k = 0; k < 5; ++k) Train(first, world);
  });
  other.join();
  CHECK(of_first == Nothing(2));
  CHECK(of_second == Nothing(3));
}

}  // namespace
}  // namespace dtrun::testing
