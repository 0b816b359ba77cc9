#include "models/program/parameter_training.h"

#include <omp.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <optional>

#include "models/data/distribute.h"
#include "models/formats/model/saved_model.h"
#include "models/formats/onnx/onnx.h"
#include "models/losses/sparse_categorical_crossentropy.h"
#include "models/program/preparation.h"
#include "models/program/run_options.h"
#include "models/text.h"
#include "models/train/exit_codes.h"
#include "models/train/pipeline_batches.h"
#include "models/train/rank_program.h"
#include "models/train/report.h"
#include "models/train/steps.h"

namespace dtrun::models {
namespace {

// What every rank has.
struct Ready {
  std::optional<ImageDataset> data;
  std::unique_ptr<Sequential> model;
};

// The network has the servers' last values.
int WriteResult(
    const std::string& program, const TrainOptions& options, const ParameterResult& result,
    Sequential& model) {
  std::fputs(ToText(result).c_str(), stdout);
  const struct {
    const char* option;
    const std::string& path;
    std::function<void()> write;
  } files[] = {
      {"--json", options.json, [&] { WriteAtomically(options.json, ToJson(result)); }},
      {"--save", options.save, [&] { SaveModel(model, options.save); }},
      {"--export-onnx", options.export_onnx, [&] { ExportOnnx(model, options.export_onnx); }}};
  for (const auto& file : files) {
    try {
      if (!file.path.empty()) file.write();
    } catch (const Error& error) {
      return Complain(program, Text(file.option, ": ", error.what()), kResultNotWritten);
    }
  }
  return kSuccess;
}

// The first server says at the end how it was.
int Serve(
    Context& job, const std::string& program, const ParameterOptions& options,
    const ParameterServerOptions& servers, Ready& ready) {
  const TrainOptions& train = options.parsed.options;
  ParameterServer server(
      job, VariablesOf(*ready.model), OptimizerMaker(train), servers,
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
  result.workers = WorkersOf(job, servers);
  result.steps = servers.steps;
  result.images_per_s = clock.updates_per_s() * static_cast<double>(train.batch_size);
  return WriteResult(program, train, result, *ready.model);
}

// Every worker passes over the same batches, and computes those that are its steps.
int Work(
    Context& job, const TrainOptions& train, const ParameterServerOptions& servers, Ready& ready) {
  ParameterWorker worker(job, VariablesOf(*ready.model), ready.model->parameters(), servers);
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

// A server holds parameters, and nothing that layers learn besides.
void CheckNetwork(const Sequential& model, const std::string& name) {
  if (model.buffers().empty()) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text(
          "network ", name, " keeps running statistics ('", model.buffers()[0].name,
          "'), which no parameter server holds"));
}

}  // namespace

int TrainWithServers(Context& job, const std::string& program, const ParameterOptions& options) {
  const ParsedOptions& parsed = options.parsed;
  const TrainOptions& train = parsed.options;
  // What is wrong is the same on all ranks, which cannot agree on it.
  const auto refuse = [&](const std::string& problem, int exit_code) {
    return job.rank() == 0 ? Complain(program, problem, exit_code) : exit_code;
  };
  if (!parsed.help.empty()) {
    if (job.rank() == 0) std::fputs(parsed.help.c_str(), stdout);
    return kSuccess;
  }
  if (!parsed.error.empty()) return refuse(parsed.error + " (see --help)", kUsage);
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
    CheckNetwork(*ready.model, train.network);
  } catch (const Error& error) {
    return refuse(error.what(), kDataUnusable);
  }
  ParameterServerOptions servers = options.servers;
  try {
    servers.min_partition_bytes = LeastPartition(train, *ready.model);
  } catch (const Error& error) {
    return refuse(error.what(), kUsage);
  }
  servers.steps = TotalSteps(train, ready.data->info.train_examples, 1);
  if (role == ParameterRole::kServer) return Serve(job, program, options, servers, ready);
  if (role == ParameterRole::kWorker) return Work(job, train, servers, ready);
  ScoreCheckpoints(job, servers, train.checkpoint_dir, *ready.model, ready.data->test);
  return kSuccess;
}

}  // namespace dtrun::models
