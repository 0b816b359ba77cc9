// The cost of the input pipeline for a training step. Times cnn_fmnist's step with batches from
// files, which are shuffled and prefetched, alternately with the same step on inputs in memory.

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/distributed_optimizer.h>
#include <dtrun/types.h>
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "bench/bench_program.h"
#include "bench/measure.h"
#include "models/data/distribute.h"
#include "models/data/image_dataset.h"
#include "models/data/pipeline.h"
#include "models/layers/activations.h"
#include "models/layers/sequential.h"
#include "models/networks/network.h"
#include "models/optim/adam.h"
#include "models/train/gradient_tree.h"

namespace dtrun::models {
namespace {

using nlohmann::json;

struct Settings {
  std::string data_dir = kFashionMnistDir;
  uint64_t batch = 1024;  // of all ranks
  int rounds = 15;
  int threads = 0;
};

// Network C, and one optimizer step of all ranks.
class Trainer {
 public:
  Trainer(Communicator& world, const ImageDataset& data, uint64_t largest_share)
      : plan_(PlanChunks(largest_share)),
        model_(
            Shape{data.info.shape.height, data.info.shape.width, data.info.shape.channels},
            NetworkC(data.info.classes),
            SequentialOptions{plan_.micro_batch, plan_.micro_batches, 1}),
        adam_(model_.parameters(), {}),
        optimizer_(world, adam_, {.op = ReduceOp::kSum}) {}

  // `load(first, count, out)` writes the inputs of some examples to `out`.
  template <typename Load>
  void Step(std::span<const int32_t> labels, uint64_t global_batch, const Load& load) {
    model_.PrepareWeights();
    const auto chunk = size_t(model_.chunk());
    labels_.resize(chunk);
    for (size_t done = 0; done < labels.size(); done += chunk) {
      const size_t count = std::min(chunk, labels.size() - done);
      load(done, count, model_.input());
      std::copy_n(labels.begin() + static_cast<ptrdiff_t>(done), count, labels_.begin());
      Pass pass;
      pass.training = true;
      pass.first_example = static_cast<uint32_t>(done);
      pass.first = done == 0;
      pass.last = done + count == labels.size();
      TrainChunk(pass, count, global_batch);
    }
    optimizer_.Step();
  }

 private:
  void TrainChunk(const Pass& pass, size_t count, uint64_t global_batch) {
    model_.Forward(pass, static_cast<int>(count));
    SoftmaxCrossEntropy(
        model_.output(), labels_.data(), count, model_.classes(),
        1.0f / static_cast<float>(global_batch), model_.output_gradient());
    const size_t all = size_t(model_.chunk()) * model_.classes();
    std::fill(
        model_.output_gradient() + count * model_.classes(), model_.output_gradient() + all, 0.0f);
    model_.Backward(pass, static_cast<int>(count), [&](size_t i) { optimizer_.MarkReady(i); });
  }

  ChunkPlan plan_;
  Sequential model_;
  Adam adam_;
  DistributedOptimizer optimizer_;
  std::vector<uint8_t> labels_;
};

// A pipeline, and the seconds that its consumer has waited.
struct Input {
  std::string name;
  Iterator batches;
  double waited_s = 0;

  const Batch& Next() {
    const Batch* batch = batches.Next();
    return batch != nullptr ? *batch : *batches.Next();
  }
};

json Measure(Context& job, const Settings& settings) {
  Communicator& world = job.world();
  const int threads = settings.threads > 0 ? settings.threads : job.threads();
  omp_set_num_threads(threads);
  const ImageDataset data = LoadImageDataset(settings.data_dir, job);
  const auto begin = [&](const Pipeline& pipeline) {
    return DistributedPipeline(
               world, pipeline.Batch(settings.batch, Remainder::kDrop).Prefetch(2),
               {.compute_threads = threads})
        .Begin();
  };
  const Pipeline shuffled = data.train.Shuffle({});
  std::vector<Input> inputs;
  inputs.push_back({"shuffle", begin(shuffled)});
  inputs.push_back(
      {"augment",
       begin(shuffled.Map(RandomFlip(1)).Map(RandomCrop(2, 1)).Map(Normalize({0.5f}, {0.25f})))});

  const Batch& first = inputs[0].Next();
  const std::vector<float> floats(
      first.inputs(), first.inputs() + first.size() * first.shape().count());
  const std::vector<int32_t> labels(first.labels().begin(), first.labels().end());
  const uint64_t share = (settings.batch - 1) / static_cast<uint64_t>(world.size()) + 1;
  Trainer trainer(world, data, share);
  std::vector<std::function<void()>> sides;
  const size_t stride = first.shape().count();
  sides.emplace_back([&] {
    trainer.Step(labels, settings.batch, [&](uint64_t from, uint64_t count, float* out) {
      std::copy_n(floats.data() + from * stride, count * stride, out);
    });
  });
  std::vector<uint64_t> steps(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    sides.emplace_back([&, i] {
      const Batch& batch = inputs[i].Next();
      trainer.Step(
          batch.labels(), batch.global_size(),
          [&](uint64_t from, uint64_t count, float* out) { batch.CopyInputs(from, count, out); });
      ++steps[i];
    });
  }
  for (Input& input : inputs) input.waited_s = -input.batches.wait_seconds();
  const std::vector<double> us = bench::MeasureInTurn(world, sides, settings.rounds);
  json rows = json::array();
  for (size_t i = 0; i < inputs.size(); ++i) {
    double wait_us = 1e6 * (inputs[i].waited_s + inputs[i].batches.wait_seconds()) /
                     static_cast<double>(steps[i]);
    world.AllReduce(Buffer(&wait_us, 1), ReduceOp::kMax);
    rows.push_back(
        {{"input", inputs[i].name},
         {"ranks", world.size()},
         {"threads", threads},
         {"batch", settings.batch},
         {"memory_us", us[0]},
         {"step_us", us[i + 1]},
         {"ratio", us[i + 1] / us[0]},
         {"wait_us", wait_us}});
  }
  return rows;
}

json MeasureAndPrint(Context& job, const Settings& settings) {
  const json rows = Measure(job, settings);
  if (job.rank() != 0) return rows;
  std::printf(
      "# %d ranks of %d threads, global batch %d\n%-8s %12s %12s %8s %12s\n", job.size(),
      rows[0]["threads"].get<int>(), rows[0]["batch"].get<int>(), "input", "memory us", "step us",
      "ratio", "wait us");
  for (const json& row : rows)
    std::printf(
        "%-8s %12.0f %12.0f %8.4f %12.1f\n", row["input"].get<std::string>().c_str(),
        row["memory_us"].get<double>(), row["step_us"].get<double>(), row["ratio"].get<double>(),
        row["wait_us"].get<double>());
  return rows;
}

}  // namespace
}  // namespace dtrun::models

using dtrun::bench::Default;
using dtrun::bench::OptionSet;
using dtrun::bench::Range;

int main(int argc, char** argv) {
  dtrun::models::Settings settings;
  OptionSet options("What the input pipeline costs a training step.", "input_perf");
  options.Add("--data-dir", &settings.data_dir, "folder of an IDX data set");
  options.Add("--batch", &settings.batch, "examples of all ranks in a step", Range<int>{1, 60'000});
  options.Add(
      "--threads", &settings.threads, "compute threads of a rank, instead of its CPUs",
      Range<int>{1, 1024}, Default::kHidden);
  options.Add(
      "--rounds", &settings.rounds, "timed rounds of each side, at least", Range<int>{1, 10'000});
  return dtrun::bench::Main(
      options,
      {"input_perf",
       [&](dtrun::Context& job) { return dtrun::models::MeasureAndPrint(job, settings); },
       [](dtrun::Context&) { return std::string(); }},
      argc, argv);
}
