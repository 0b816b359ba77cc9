// Trains a network by name on Fashion-MNIST, or another IDX data set, with parameter servers:
//   dtrun -np 3 --ps 1 ps_fmnist --batch-size 64 --epochs 2

#include <dtrun/dtrun.h>
#include <omp.h>

#include <cstdio>
#include <optional>

#include "models/data/distribute.h"
#include "models/losses/sparse_categorical_crossentropy.h"
#include "models/program/parameter_program.h"
#include "models/program/preparation.h"
#include "models/program/run_options.h"
#include "models/train/exit_codes.h"
#include "models/train/pipeline_batches.h"
#include "models/train/rank_program.h"
#include "models/train/report.h"
#include "models/train/steps.h"

namespace dtrun::models {
namespace {

constexpr char kProgram[] = "ps_fmnist";

int Report(const TrainOptions& options, const ParameterResult& result) {
  std::fputs(ToText(result).c_str(), stdout);
  try {
    if (!options.json.empty()) WriteAtomically(options.json, ToJson(result));
  } catch (const Error& error) {
    return Complain(kProgram, std::string("--json: ") + error.what(), kResultNotWritten);
  }
  return kSuccess;
}

// What every rank has.
struct Ready {
  std::optional<ImageDataset> data;
  std::unique_ptr<Sequential> model;
};

int Serve(Context& job, const ParameterOptions& options, Ready& ready) {
  const TrainOptions& train = options.parsed.options;
  ParameterServer server(
      job, VariablesOf(*ready.model), OptimizerMaker(train), options.servers,
      {train.checkpoint_dir, train.checkpoint_every, train.keep_checkpoints, train.resume});
  auto& optimizer = dynamic_cast<RateOptimizer&>(server.optimizer());
  UpdateClock clock;
  server.set_before_update([&](uint64_t update) {
    const uint64_t step = server.first_step() + update;
    optimizer.set_learning_rate(RateAt(train, step, ready.data->info.train_examples, 1));
    clock.Tick();
  });
  server.Serve();
  if (job.rank() > 0) return kSuccess;
  ParameterResult result = ResultOf(server, ScoreOf(job, *ready.model, ready.data->test));
  result.workers = WorkersOf(job, options.servers);
  result.steps = options.servers.steps;
  result.images_per_s = clock.updates_per_s() * static_cast<double>(train.batch_size);
  return Report(train, result);
}

int Work(Context& job, const ParameterOptions& options, Ready& ready) {
  const TrainOptions& train = options.parsed.options;
  ParameterWorker worker(
      job, VariablesOf(*ready.model), ready.model->parameters(), options.servers);
  PushingOptimizer optimizer(worker, ready.model->parameters());
  Replica replica(job.world(), *ready.model, optimizer);
  const auto loss = SparseCategoricalCrossentropy::For(LastLayerOf(ready.model->description()));
  PipelineBatches batches{DistributedPipeline(
      job.world(), ready.data->train.Shuffle({.seed = train.seed}).Batch(train.batch_size))};
  const uint64_t per_epoch = StepsPerEpoch(train, ready.data->info.train_examples, 1);
  ReplicaBatch batch;
  uint64_t at = UINT64_MAX, steps = 0, examples = 0;  // at: the step whose batch comes next
  while (const auto step = worker.NextStep()) {
    // Those between were other workers'.
    if (at > *step || at / per_epoch != *step / per_epoch)
      batches.StartEpoch(*step / per_epoch, (at = *step) % per_epoch);
    for (; at <= *step; ++at) batches.Next(batch);
    worker.Pull();
    replica.ParametersChanged();
    replica.set_step(*step);
    TrainStep(replica, batch, loss, {});
    job.ReportProgress(++steps, examples += batch.examples);
  }
  return kSuccess;
}

int TrainAsRank(Context& job, ParameterOptions& options) {
  const ParsedOptions& parsed = options.parsed;
  const auto refuse = [&](const std::string& problem, int exit_code) {
    return job.rank() == 0 ? Complain(kProgram, problem, exit_code) : exit_code;
  };
  if (!parsed.help.empty()) {
    if (job.rank() == 0) std::fputs(parsed.help.c_str(), stdout);
    return kSuccess;
  }
  if (!parsed.error.empty()) return refuse(parsed.error + " (see --help)", kUsage);
  const TrainOptions& train = parsed.options;
  ParameterRole role{};
  try {
    role = RoleOf(job, options.servers);
  } catch (const Error& error) {
    return refuse(error.what(), kUsage);
  }
  Ready ready;
  omp_set_num_threads(ComputeThreads(train, job));
  try {
    ready.data = LoadImageDataset(train.data_dir);
    ready.model = MakeModel(ready.data->info, train.batch_size, train);
  } catch (const Error& error) {
    return refuse(error.what(), kDataUnusable);
  }
  options.servers.steps = TotalSteps(train, ready.data->info.train_examples, 1);
  if (role == ParameterRole::kServer) return Serve(job, options, ready);
  if (role == ParameterRole::kWorker) return Work(job, options, ready);
  ScoreCheckpoints(job, options, *ready.model, ready.data->test);
  return kSuccess;
}

int Main(int argc, char** argv) {
  ParameterOptions options = ReadParameterOptions(argc, argv);
  return RunAsRank(kProgram, [&](Context& job) { return TrainAsRank(job, options); });
}

}  // namespace
}  // namespace dtrun::models

int main(int argc, char** argv) { return dtrun::models::Main(argc, argv); }
