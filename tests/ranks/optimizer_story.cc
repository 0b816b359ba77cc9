// A rank that trains a small model. The first argument names the story. Rank 0 prints the weights,
// and every rank prints its error.

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/distributed_optimizer.h>
#include <dtrun/error.h>
#include <dtrun/gradient_reducer.h>
#include <dtrun/metrics.h>
#include <dtrun/objects.h>
#include <dtrun/optimizer.h>
#include <dtrun/types.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace programs::optimizer_story {

using dtrun::Buffer;
using dtrun::Communicator;
using dtrun::DistributedOptimizer;
using dtrun::DistributedOptions;

// Gradient descent with rate 1 on a vector and on a table of 4 rows with 2 elements each.
struct Model : dtrun::Optimizer {
  std::vector<float> bias = std::vector<float>(2), table = std::vector<float>(8);
  std::vector<dtrun::Parameter> list{
      {"bias", {bias.data(), 2}, {}}, {"table", {table.data(), 8}, {}, 2}};
  std::vector<dtrun::Parameter>& parameters() override { return list; }
  std::vector<dtrun::NamedBuffer> state() override { return {}; }
  void Step() override {
    for (const dtrun::Parameter& parameter : list) {
      if (!parameter.has_gradient) continue;
      const auto* gradient = static_cast<const float*>(parameter.gradient.data);
      for (uint64_t k = 0; k < parameter.value.count; ++k)
        static_cast<float*>(parameter.value.data)[k] -= gradient[k];
    }
  }
  void Backward(float amount) {
    for (int k = 0; k < 2; ++k) static_cast<float*>(list[0].gradient.data)[k] += amount;
  }
  void Print() const {
    for (const float x : bias) std::printf("%g ", static_cast<double>(x));
    for (const float x : table) std::printf(" %g", static_cast<double>(x));
    std::printf("\n");
  }
};

void MarkRows(DistributedOptimizer& optimizer, const std::vector<int64_t>& rows, float amount) {
  std::vector<float> values(2 * rows.size(), amount);
  optimizer.MarkRows(1, rows.data(), rows.size(), Buffer(values.data(), values.size()));
}

// Rank r has r + 1 batches with gradients of r + 1 and marks rows 0 and r % 4.
void Uneven(Communicator& world, Model& model, DistributedOptions options) {
  options.check_every = 1;
  DistributedOptimizer optimizer(world, model, options);
  const auto amount = static_cast<float>(world.rank() + 1);
  for (int batch = 0; batch <= world.rank(); ++batch) {
    optimizer.ZeroGradients();
    model.Backward(amount);
    optimizer.MarkReady(0);
    MarkRows(optimizer, {0, world.rank() % 4}, amount);
    optimizer.Step();
  }
  const int last = optimizer.Join();
  if (world.rank() == 0) std::printf("last %d: ", last);
}

void Frozen(Communicator& world, Model& model, DistributedOptions options) {
  model.list[1].requires_gradient = false;
  DistributedOptimizer optimizer(world, model, options);
  for (int step = 0; step < 4; ++step) {
    if (step == 2) optimizer.Thaw(1), optimizer.Freeze(0);
    optimizer.ZeroGradients();
    model.Backward(1);
    optimizer.MarkReady(0);
    MarkRows(optimizer, {3}, static_cast<float>(world.size() * world.rank()));
    optimizer.Step();
  }
}

void Passes(Communicator& world, Model& model, DistributedOptions options) {
  options.backward_passes_per_step = 4;
  options.average_aggregated_gradients = true;
  DistributedOptimizer optimizer(world, model, options);
  optimizer.ZeroGradients();
  for (int batch = 0; batch < 10; ++batch) {
    model.Backward(static_cast<float>(world.rank()));
    optimizer.MarkReady(0), optimizer.MarkUnused(1);
    if (batch % 4 == 3) optimizer.Step(), optimizer.ZeroGradients();
  }
}

void Objects(Communicator& world, Model&, DistributedOptions) {
  const auto rank = static_cast<size_t>(world.rank());
  const auto all = dtrun::AllGatherStrings(world, std::vector<std::string>(rank, "x"));
  size_t strings = 0;
  for (const auto& one : all) strings += one.size();
  const dtrun::Metrics mean =
      dtrun::AverageMetrics(world, {{"loss", double(rank)}}, static_cast<double>(rank));
  if (rank == 0) std::printf("%zu strings, loss %.3f: ", strings, mean.at("loss"));
}

void NotANumber(Communicator& world, Model& model, DistributedOptions options) {
  options.check_every = 1;
  DistributedOptimizer optimizer(world, model, options);
  for (int step = 0; step < 2; ++step) {
    model.Backward(step == 1 && world.rank() == 1 ? NAN : 1);
    optimizer.MarkReady(0);
    optimizer.Step();
  }
}

void FrozenOnOne(Communicator& world, Model& model, DistributedOptions options) {
  DistributedOptimizer optimizer(world, model, options);
  if (world.rank() == 1) optimizer.Freeze(0);
  optimizer.Step();
}

void WholeOnOne(Communicator& world, Model& model, DistributedOptions options) {
  DistributedOptimizer optimizer(world, model, options);
  if (world.rank() == 1)
    optimizer.MarkReady(1);
  else
    MarkRows(optimizer, {2}, 1);
  optimizer.Step();
}

void Elsewhere(Communicator& world, Model& model, DistributedOptions options) {
  DistributedOptimizer optimizer(world, model, options);
  if (world.rank() == 0) optimizer.Join();
  std::vector<float> all(static_cast<size_t>(world.size()));
  float mine = 1;
  world.AllGather(Buffer(&mine, 1), Buffer(all.data(), all.size()));
}

void Leaves(Communicator& world, Model& model, DistributedOptions options) {
  DistributedOptimizer optimizer(world, model, options);
  if (world.rank() == 1) std::exit(0);
  optimizer.Join();
}

int Main(int argc, char** argv) {
  const std::map<std::string, std::function<void(Communicator&, Model&, DistributedOptions)>>
      stories = {{"uneven", Uneven},
                 {"frozen", Frozen},
                 {"passes", Passes},
                 {"objects", Objects},
                 {"not_a_number", NotANumber},
                 {"frozen_on_one", FrozenOnOne},
                 {"whole_on_one", WholeOnOne},
                 {"elsewhere", Elsewhere},
                 {"leaves", Leaves}};
  dtrun::Context job = dtrun::Init();
  DistributedOptions options;
  options.sparse_as_dense = argc > 2;
  try {
    Model model;
    stories.at(argv[1])(job.world(), model, options);
    if (job.rank() == 0) model.Print();
  } catch (const dtrun::Error& error) {
    std::printf("%d: %s\n", job.rank(), error.what());
    if (error.code() != dtrun::ErrorCode::kMismatch) return 1;
  }
  job.Shutdown();
  return 0;
}

}  // namespace programs::optimizer_story
