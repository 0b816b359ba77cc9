// Trains a network by name on Fashion-MNIST, or another IDX data set, with parameter servers:
//   dtrun -np 3 --ps 1 ps_fmnist --batch-size 64 --epochs 2

#include <dtrun/dtrun.h>
#include <omp.h>

#include <cstdio>

#include "models/data/sampling.h"
#include "models/optim/by_name.h"
#include "models/program/parameter_program.h"
#include "models/program/preparation.h"
#include "models/program/run_options.h"
#include "models/train/exit_codes.h"
#include "models/train/rank_program.h"
#include "models/train/report.h"
#include "models/train/step.h"

namespace dtrun::models {
namespace {

constexpr char kProgram[] = "ps_fmnist";

int Report(const TrainOptions& options, const ParameterResult& result, const std::string& lines) {
  std::fputs(ToText(result, lines).c_str(), stdout);
  try {
    if (!options.json.empty()) WriteAtomically(options.json, ToJson(result));
  } catch (const Error& error) {
    return Complain(kProgram, std::string("--json: ") + error.what(), kResultNotWritten);
  }
  return kSuccess;
}

int Serve(Context& job, const ParameterOptions& options, Preparation& ready) {
  const TrainOptions& train = options.parsed.options;
  const auto make_optimizer = [&](std::vector<Parameter>& shards, const auto& shapes) {
    std::vector<std::vector<int>> dimensions;
    for (const auto& shape : shapes) dimensions.emplace_back(shape.begin(), shape.end());
    OptimizerSettings settings;
    settings.learning_rate = train.learning_rate;
    settings.momentum = train.momentum;
    return MakeOptimizer(train.optimizer, shards, dimensions, settings);
  };
  ParameterServer server(
      job, VariablesOf(*ready.model), make_optimizer, options.servers,
      {train.checkpoint_dir, train.checkpoint_every, train.keep_checkpoints, train.resume});
  auto& optimizer = dynamic_cast<RateOptimizer&>(server.optimizer());
  UpdateClock clock;
  server.set_before_update([&](uint64_t update) {
    const uint64_t step = server.first_step() + update;
    optimizer.set_learning_rate(RateAt(train, step, ready.data.train.count, 1));
    clock.Tick();
  });
  server.Serve();
  if (job.rank() > 0) return kSuccess;
  const Images& test = ready.data.test;
  const ParameterResult result = {
      .workers = WorkersOf(job, options.servers),
      .steps = options.servers.steps,
      .test = Evaluate(*ready.model, test, {0, test.count}),
      .images_per_s = clock.updates_per_s() * static_cast<double>(train.batch_size),
      .statistics = server.statistics(),
      .staleness = server.staleness()};
  return Report(train, result, server.StalenessHistogram());
}

int Work(Context& job, const ParameterOptions& options, Preparation& ready) {
  const TrainOptions& train = options.parsed.options;
  const Images& images = ready.data.train;
  const uint64_t steps_per_epoch = StepsPerEpoch(train, images.count, 1);
  ParameterWorker worker(
      job, VariablesOf(*ready.model), ready.model->parameters(), options.servers);
  std::vector<uint32_t> order;
  uint64_t order_epoch = UINT64_MAX, steps = 0, examples = 0;
  while (const auto step = worker.NextStep()) {
    if (const uint64_t epoch = *step / steps_per_epoch; epoch != order_epoch)
      order = EpochOrder(train.seed, order_epoch = epoch, images.count);
    const Range batch = GlobalBatch(*step % steps_per_epoch, images.count, train.batch_size);
    Share share;
    share.examples = std::span(order).subspan(batch.begin, batch.size());
    share.global_batch = batch.size();
    share.step = *step;
    worker.Pull();
    ComputeGradients(*ready.model, images, share, [](size_t) {});
    worker.Push();
    job.ReportProgress(++steps, examples += batch.size());
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
  ParameterRole role{};
  try {
    role = RoleOf(job, options.servers);
  } catch (const Error& error) {
    return refuse(error.what(), kUsage);
  }
  omp_set_num_threads(parsed.options.threads > 0 ? parsed.options.threads : job.threads());
  Preparation ready = Prepare(parsed, job);
  if (ready.verdict.exit_code != kSuccess)
    return refuse(ready.verdict.problem, ready.verdict.exit_code);
  options.servers.steps = TotalSteps(parsed.options, ready.data.train.count, 1);
  if (role == ParameterRole::kServer) return Serve(job, options, ready);
  if (role == ParameterRole::kWorker) return Work(job, options, ready);
  ScoreCheckpoints(job, options, *ready.model, ready.data.test);
  return kSuccess;
}

int Main(int argc, char** argv) {
  ParameterOptions options = ReadParameterOptions(argc, argv);
  return RunAsRank(kProgram, [&](Context& job) { return TrainAsRank(job, options); });
}

}  // namespace
}  // namespace dtrun::models

int main(int argc, char** argv) { return dtrun::models::Main(argc, argv); }
