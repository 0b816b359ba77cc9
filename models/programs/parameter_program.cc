
#include <dtrun/strategies.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "models/callbacks/callbacks.h"
#include "models/callbacks/log_values.h"
#include "models/callbacks/tensorboard.h"
#include "models/data/distribute.h"
#include "models/formats/model/saved_model.h"
#include "models/formats/onnx/onnx.h"
#include "models/gpu/cuda_device.h"
#include "models/losses/loss.h"
#include "models/message_text.h"
#include "models/metrics/metric.h"
#include "models/optim/by_name.h"
#include "models/programs/rank_main.h"
#include "models/programs/training.h"
#include "models/programs/training_options.h"
#include "models/train/agreement.h"
#include "models/train/batch.h"
#include "models/train/replica.h"
#include "models/train/report.h"
#include "models/train/steps.h"
#include "models/train/trainer.h"

namespace dtrun::models {
namespace {

constexpr char kHelp[] =
    "With parameter servers (dtrun --ps N, --strategy parameter_server):\n"
    "  --max-staleness N         Apply a gradient only if at most N updates came between\n"
    "                            reading the values and applying it [no bound]\n"
    "  --evaluator               The last rank scores each new checkpoint instead of\n"
    "                            training\n";

constexpr int64_t kMostStaleness = 1'000'000'000;

// With parameter servers, no rank has all steps, and no rank waits for all other ranks. Returns the
// error for an option that needs either.
std::string ErrorWithServers(const ParameterOptions& options) {
  const TrainOptions& train = options.parsed.options;
  if (options.servers.evaluator && train.checkpoint_dir.empty())
    return "--evaluator scores checkpoints, so it needs --checkpoint-dir";
  if (train.deterministic > 0)
    return "--deterministic: gradients reach parameter servers in any order; expected no "
           "--deterministic";
  if (train.dtype == "f16") return "--dtype f16: with parameter servers, expected f32 or bf16";
  if (train.strategy != "parameter_server" && train.device != "auto")
    return Text(
        "--device ", train.device, ": given with --strategy ", train.strategy,
        ", which names devices; expected one of the two");
  if (train.largest_batch) return "--batch-size auto: with parameter servers, expected a number";
  if (train.adasum)
    return "--adasum: workers of parameter servers do not wait for each other; expected no "
           "--adasum";
  if (train.global_batch_size > 0)
    return "--global-batch-size: workers of parameter servers share no batch; expected "
           "--batch-size";
  const struct {
    const char* option;
    bool given;
  } of_all_steps[] = {
      {"--loop custom", train.loop != "fit"},
      {"--report", !train.report.empty()},
      {"--log-steps", train.log_steps},
      {"--example-log", !train.example_log.empty()}};
  for (const auto& [option, given] : of_all_steps)
    if (given)
      return Text(
          option,
          ": with parameter servers no rank sees all steps; leave the option out, or use "
          "another --strategy");
  return "";
}

std::string ErrorWithoutServers(const ParameterOptions& options, bool bounded) {
  if (!bounded && !options.servers.evaluator) return "";
  return Text(
      bounded ? "--max-staleness" : "--evaluator", ": given with --strategy ",
      options.parsed.options.strategy, ", expected --strategy parameter_server");
}

}  // namespace

// Parses its two options and passes the other words to ParseOptions.
ParameterOptions ReadParameterOptions(int argc, const char* const* argv) {
  ParameterOptions options;
  int64_t max_staleness = -1;
  CLI::App app;
  app.allow_extras()->set_help_flag();
  app.add_option("--max-staleness", max_staleness)->check(CLI::Range(int64_t{0}, kMostStaleness));
  app.add_flag("--evaluator", options.servers.evaluator);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    options.parsed.error = error.what();
    return options;
  }
  const std::vector<std::string> others = app.remaining();
  std::vector<const char*> words = {argv[0]};
  for (const std::string& word : others) words.push_back(word.c_str());
  options.parsed = ParseOptions(static_cast<int>(words.size()), words.data());
  options.parsed.options.command = CommandText(argc, argv);
  if (options.parsed.help.find("\nUsage: ") != std::string::npos) options.parsed.help += kHelp;
  if (max_staleness >= 0) options.servers.max_staleness = static_cast<uint64_t>(max_staleness);
  if (options.parsed.error.empty())
    options.parsed.error = options.has_servers() ? ErrorWithServers(options)
                                                 : ErrorWithoutServers(options, max_staleness >= 0);
  return options;
}

namespace {

// The devices of the workers, in the strategy's name or of --device. `cuda` is a GPU by the number
// of the worker on its host. `auto` is the CPU.
std::vector<std::string> DevicesOf(const Context& job, const TrainOptions& train) {
  const DeviceNames named = DeviceNamesIn(train.strategy);
  if (!named.empty()) return named;
  const std::string& wish = train.device;
  if (wish.rfind("cuda:", 0) == 0) return {wish};
  if (wish != "cuda") return {};
  const int first = std::max(job.rank() - job.local_rank(), job.parameter_servers());
  const int count = std::max(CudaDeviceCount(), 1);
  return {Text("cuda:", std::max(job.rank() - first, 0) % count)};
}

// The accuracy and loss of a network on a data set.
struct Score {
  double accuracy = 0, loss = 0;
};

Score ScoreOf(Replica& replica, const Pipeline& images) {
  constexpr uint64_t kBatch = 1000;
  const auto loss = SparseCategoricalCrossentropy::For(LastLayerOf(replica.model().description()));
  Trainer trainer(replica, loss, MakeMetrics(SparseCategoricalAccuracy()));
  PipelineBatches batches{DistributedPipeline(replica.world(), images.Batch(kBatch))};
  const Logs logs = trainer.Evaluate(batches);
  return {logs.at("accuracy"), logs.at("loss")};
}

// The results that the first server has at the end of the job.
struct ParameterResult {
  int workers = 0;  // at the start of the job
  uint64_t steps = 0;
  Score test;
  double images_per_s = 0;  // of all workers together, without the time before the first update
  ParameterStatistics statistics;
  std::vector<uint64_t> staleness;
  std::string histogram;  // of the staleness, in lines
};

// {"workers": 2, "steps": 938, "test_accuracy": 0.89, "test_loss": 0.3, "images_per_s": 5100,
//  "updates": 938, "repeated_steps": 0, "lost_workers": 0, "server_update_s": 0.7,
//  "server_copy_s": 0.4, "server_cpu_s": 1.2, "staleness": [40, 880, 18]}
std::string ToJson(const ParameterResult& result) {
  const nlohmann::json json = {
      {"workers", result.workers},
      {"steps", result.steps},
      {"test_accuracy", result.test.accuracy},
      {"test_loss", result.test.loss},
      {"images_per_s", result.images_per_s},
      {"updates", result.statistics.updates},
      {"repeated_steps", result.statistics.repeated_steps},
      {"lost_workers", result.statistics.lost_workers},
      {"server_update_s", result.statistics.update_s},
      {"server_copy_s", result.statistics.copy_s},
      {"server_cpu_s", result.statistics.cpu_s},
      {"staleness", result.staleness}};
  return json.dump(1) + "\n";
}

std::string ToText(const ParameterResult& result) {
  char line[256];
  std::snprintf(
      line, sizeof line,
      "%llu steps, %.0f images/s; the server's thread took %.2f s of a CPU (updates %.2f s, "
      "copies %.2f s)\ntest accuracy %.4f, test loss %.4f\n",
      static_cast<unsigned long long>(result.steps), result.images_per_s, result.statistics.cpu_s,
      result.statistics.update_s, result.statistics.copy_s, result.test.accuracy, result.test.loss);
  const ParameterStatistics& s = result.statistics;
  return result.histogram + line +
         (s.lost_workers == 0
              ? ""
              : Text(
                    s.lost_workers, s.lost_workers == 1 ? " worker was" : " workers were",
                    " lost, ", s.repeated_steps,
                    s.repeated_steps == 1 ? " step was" : " steps were", " handed out again\n"));
}

// The data, the network and the optimizer of a rank, in any role.
struct Ready {
  std::optional<ImageDataset> data;
  std::unique_ptr<ComputeDevice> device;
  std::unique_ptr<Sequential> model;
  std::unique_ptr<RateOptimizer> optimizer;
};

// The evaluator: prints the test accuracy of each new checkpoint, until the job is done. The loop
// ends only after it has scored the last checkpoint. The server that saves the first checkpoint
// creates the folder.
void ScoreCheckpoints(
    Context& job, const ParameterServerOptions& servers, const std::string& folder, Ready& ready) {
  constexpr std::chrono::milliseconds kLook{100};
  const ServedVariables variables(*ready.optimizer, job.parameter_servers());
  ParameterReader reader(job, variables.tensors(), variables.OptionsFor(servers));
  Replica replica(job.world(), *ready.model, *ready.optimizer);
  CheckpointOptions reading;
  reading.read_only = true;
  std::optional<CheckpointManager> checkpoints;
  std::string scored;
  for (;;) {
    const bool finished = reader.progress().finished;
    if (!checkpoints && std::filesystem::is_directory(folder))
      checkpoints.emplace(job.world(), folder, reading);
    const std::vector<Checkpoint> list =
        checkpoints ? checkpoints->List() : std::vector<Checkpoint>();
    if (!list.empty() && list.back().name != scored) {
      LoadOptions load;
      load.name = scored = list.back().name;
      load.allow_unexpected = true;  // tensors of the optimizer
      checkpoints->Load(TensorsOf(replica.BorrowWeights()), load);
      replica.ReturnWeights();
      std::printf(
          "%s: test accuracy %.4f\n", scored.c_str(), ScoreOf(replica, ready.data->test).accuracy);
      std::fflush(stdout);
    } else if (finished) {
      return;
    } else {
      std::this_thread::sleep_for(kLook);
    }
  }
}

// Every step has --batch-size examples, of one worker.
std::map<std::string, std::string> MetadataOf(
    const Context& job, const std::string& program, const TrainOptions& options,
    const ParameterResult& result) {
  std::map<std::string, std::string> metadata = OriginOf(program, job, options);
  metadata["batch"] = std::to_string(options.batch_size);
  metadata["steps"] = std::to_string(result.steps);
  metadata["workers"] = std::to_string(result.workers);
  // As JSON, the shortest text that reads back as the same number.
  metadata["test_accuracy"] = nlohmann::json(result.test.accuracy).dump();
  metadata["test_loss"] = nlohmann::json(result.test.loss).dump();
  return metadata;
}

// `model` has the servers' final values.
int WriteResult(
    const Context& job, const std::string& program, const TrainOptions& options,
    const ParameterResult& result, Sequential& model) {
  std::fputs(ToText(result).c_str(), stdout);
  const struct {
    const char* option;
    const std::string& path;
    std::function<void()> write;
  } files[] = {
      {"--json", options.json, [&] { WriteAtomically(options.json, ToJson(result)); }},
      {"--save", options.save,
       [&] { SaveModel(model, options.save, MetadataOf(job, program, options, result)); }},
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

// The first server has the final values.
ParameterResult ResultOf(
    const Context& job, const ParameterServer& server, const ParameterServerOptions& servers,
    const TrainOptions& train, const Score& test) {
  ParameterResult result;
  result.workers = WorkersOf(job, servers);
  result.steps = servers.steps;
  result.test = test;
  result.statistics = server.statistics();
  result.staleness = server.staleness();
  result.histogram = server.StalenessHistogram();
  const ParameterStatistics& made = result.statistics;
  if (made.updates > 1)
    result.images_per_s = static_cast<double>((made.updates - 1) * train.batch_size) / made.span_s;
  return result;
}

// TensorBoard shows the batches of the chief. At the end of an epoch, all workers see the same
// values, so all of them stop early, or none.
CallbackList CallbacksOfWorker(
    Context& job, const Strategy& strategy, const TrainOptions& train, uint64_t images) {
  CallbackList list;
  list.push_back(std::make_unique<StepSchedule>(
      [&train, images](uint64_t step) { return RateAt(train, step, images, 1); }));
  list.push_back(std::make_unique<ReportProgress>(job));
  if (!train.tensorboard.empty() && strategy.is_chief())
    list.push_back(std::make_unique<TensorBoard>(TensorBoardOptions{
        .log_dir = train.tensorboard, .hparams = HParamsOf(train, 1), .command = train.command}));
  if (train.early_stopping > 0)
    list.push_back(std::make_unique<EarlyStopping>(
        EarlyStoppingOptions{.patience = train.early_stopping, .restore_best_weights = false}));
  return list;
}

// The workers share the batches of each epoch.
void Work(
    Context& job, Strategy& strategy, const TrainOptions& train, Replica& replica, Ready& ready) {
  const uint64_t images = ready.data->info.train_examples, last = TotalSteps(train, images, 1);
  const uint64_t per_epoch = StepsPerEpoch(train, images, 1);
  const Pipeline shuffled = ready.data->train.Shuffle({.seed = train.seed});
  StrategyBatches batches(strategy.DistributeDataset(
      PipelineDataset(shuffled.Batch(train.batch_size).Take(per_epoch))));
  StrategyBatches test(strategy.DistributeEvaluationDataset(
      PipelineDataset(ready.data->test.Batch(train.batch_size))));
  const auto loss = SparseCategoricalCrossentropy::For(LastLayerOf(ready.model->description()));
  Trainer trainer(replica, loss, MakeMetrics(SparseCategoricalAccuracy()));
  const bool validates = train.early_stopping > 0 || !train.tensorboard.empty();
  trainer.Fit(
      batches,
      {.epochs = (last + per_epoch - 1) / per_epoch,
       .initial_epoch = replica.step() / per_epoch,
       .validation_data = validates ? &test : nullptr},
      CallbacksOfWorker(job, strategy, train, images));
}

int Train(
    Context& job, const std::string& program, const TrainOptions& train,
    const ParameterServerOptions& servers, ParameterServerStrategy& strategy, Ready& ready) {
  Replica replica(strategy, *ready.model, *ready.optimizer);
  if (!strategy.is_server()) Work(job, strategy, train, replica, ready);
  if (job.rank() > 0) return kSuccess;
  const Score test = ScoreOf(replica, ready.data->test);
  const ParameterResult result = ResultOf(job, *strategy.server(), servers, train, test);
  return WriteResult(job, program, train, result, *ready.model);
}

// A server holds parameters but no buffers, such as running statistics.
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
  // All ranks find the same problem, so rank 0 alone prints it. The ranks cannot agree on it here.
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
  } catch (const Error& error) {
    return refuse(error.what(), kDataUnusable);
  }
  ParameterServerOptions servers = options.servers;
  servers.steps = TotalSteps(train, ready.data->info.train_examples, 1);
  std::optional<ParameterServerStrategy> strategy;
  if (role != ParameterRole::kEvaluator) {
    const ParameterCheckpoints checkpoints = {
        train.checkpoint_dir, train.checkpoint_every, train.keep_checkpoints, train.resume};
    strategy.emplace(
        job, ParameterStrategyOptions{
                 .servers = servers, .checkpoints = checkpoints, .devices = DevicesOf(job, train)});
  }
  ready.device = strategy ? MakeDevice(*strategy) : MakeCpuDevice();
  try {
    ready.model = MakeModel(ready.data->info, train.batch_size, train, *ready.device);
    CheckNetwork(*ready.model, train.network);
  } catch (const Error& error) {
    return refuse(error.what(), kDataUnusable);
  }
  try {
    OptimizerSettings settings = train.settings;
    settings.learning_rate = train.learning_rate;
    ready.optimizer = MakeOptimizer(
        train.optimizer, ready.model->parameters(), ready.model->parameter_shapes(), settings,
        *ready.device);
  } catch (const Error& error) {
    return refuse(error.what(), kUsage);
  }
  if (strategy) return Train(job, program, train, servers, *strategy, ready);
  ScoreCheckpoints(job, servers, train.checkpoint_dir, ready);
  return kSuccess;
}

}  // namespace dtrun::models
