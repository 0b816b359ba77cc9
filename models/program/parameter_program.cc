#include "models/program/parameter_program.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "models/data/distribute.h"
#include "models/losses/sparse_categorical_crossentropy.h"
#include "models/metrics/accuracy.h"
#include "models/optim/by_name.h"
#include "models/optim/sgd.h"
#include "models/text.h"
#include "models/train/pipeline_batches.h"
#include "models/train/replica.h"
#include "models/train/trainer.h"

namespace dtrun::models {
namespace {

constexpr char kHelp[] =
    "With parameter servers (dtrun --ps N, --strategy parameter_server):\n"
    "  --max-staleness N   Updates between the values that a gradient is computed from and those\n"
    "                      that it is applied to, at most [no bound]\n"
    "  --evaluator         The last rank is no worker, but scores each new checkpoint\n";

constexpr int64_t kMostStaleness = 1'000'000'000;

// No rank sees all steps, and none waits for all others.
std::string ErrorWithServers(const ParameterOptions& options) {
  const TrainOptions& train = options.parsed.options;
  if (options.servers.evaluator && train.checkpoint_dir.empty())
    return "--evaluator scores checkpoints, so it needs --checkpoint-dir";
  if (train.deterministic > 0)
    return "--deterministic: gradients come to parameter servers as they may";
  if (train.device.rfind("cuda", 0) == 0)
    return Text("--device ", train.device, ": with parameter servers, expected cpu");
  if (train.dtype == "f16") return "--dtype f16: with parameter servers, expected f32 or bf16";
  if (train.largest_batch) return "--batch-size auto: with parameter servers, expected a number";
  if (train.adasum) return "--adasum: workers of parameter servers do not wait for each other";
  if (train.global_batch_size > 0)
    return "--global-batch-size: workers of parameter servers share no batch; expected "
           "--batch-size";
  const struct {
    const char* option;
    bool given;
  } of_all_steps[] = {
      {"--loop custom", train.loop != "fit"},
      {"--early-stopping", train.early_stopping > 0},
      {"--tensorboard", !train.tensorboard.empty()},
      {"--report", !train.report.empty()},
      {"--log-steps", train.log_steps}};
  for (const auto& [option, given] : of_all_steps)
    if (given)
      return Text(
          option,
          ": with parameter servers no rank sees all steps; leave it out, or take "
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

// Both options are taken away, and ParseOptions reads what is left.
ParameterOptions ReadParameterOptions(
    int argc, const char* const* argv, const std::string& strategy) {
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
  TrainOptions defaults;
  defaults.strategy = strategy;
  options.parsed = ParseOptions(static_cast<int>(words.size()), words.data(), defaults);
  if (!options.parsed.help.empty()) options.parsed.help += kHelp;
  if (max_staleness >= 0) options.servers.max_staleness = static_cast<uint64_t>(max_staleness);
  if (options.parsed.error.empty())
    options.parsed.error = options.has_servers() ? ErrorWithServers(options)
                                                 : ErrorWithoutServers(options, max_staleness >= 0);
  return options;
}

// A trainer evaluates a replica, which has an optimizer; this one is never asked to step.
Score ScoreOf(Context& job, Sequential& model, const Pipeline& images) {
  constexpr uint64_t kBatch = 1000;
  Sgd unused(model.parameters(), {});
  Replica replica(job.world(), model, unused);
  const auto loss = SparseCategoricalCrossentropy::For(LastLayerOf(model.description()));
  Trainer trainer(replica, loss, MakeMetrics(SparseCategoricalAccuracy()));
  PipelineBatches batches{DistributedPipeline(job.world(), images.Batch(kBatch))};
  const Logs logs = trainer.Evaluate(batches);
  return {logs.at("accuracy"), logs.at("loss")};
}

std::vector<NamedTensor> VariablesOf(Sequential& model) {
  std::vector<NamedTensor> variables;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const Parameter& parameter = model.parameters()[i];
    const std::vector<int>& shape = model.parameter_shapes()[i];
    variables.emplace_back(
        parameter.name, parameter.value, std::vector<uint64_t>(shape.begin(), shape.end()));
  }
  return variables;
}

ParameterServer::MakeOptimizer OptimizerMaker(const TrainOptions& options) {
  return
      [options](std::vector<Parameter>& shards, const std::vector<std::vector<uint64_t>>& shapes) {
        std::vector<std::vector<int>> dimensions;
        for (const auto& shape : shapes) dimensions.emplace_back(shape.begin(), shape.end());
        OptimizerSettings settings = options.settings;
        settings.learning_rate = options.learning_rate;
        return MakeOptimizer(options.optimizer, shards, dimensions, settings);
      };
}

uint64_t LeastPartition(const TrainOptions& options, Sequential& model) {
  const auto optimizer = MakeOptimizer(
      options.optimizer, model.parameters(), model.parameter_shapes(), options.settings);
  const auto* sliceable = dynamic_cast<const SliceableOptimizer*>(optimizer.get());
  const bool whole = sliceable == nullptr || sliceable->needs_norms();
  return whole ? UINT64_MAX : ParameterServerOptions().min_partition_bytes;
}

ParameterResult ResultOf(const ParameterServer& server, const Score& test) {
  ParameterResult result;
  result.test = test;
  result.statistics = server.statistics();
  result.staleness = server.staleness();
  result.histogram = server.StalenessHistogram();
  return result;
}

void UpdateClock::Tick() {
  last_ = std::chrono::steady_clock::now();
  if (ticks_++ == 0) first_ = last_;
}

double UpdateClock::updates_per_s() const {
  const std::chrono::duration<double> time = last_ - first_;
  return ticks_ < 2 ? 0 : static_cast<double>(ticks_ - 1) / time.count();
}

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

// A checkpoint that is there when the job is done is scored before this ends. The folder is made by
// the server that saves the first one.
void ScoreCheckpoints(
    Context& job, const ParameterServerOptions& servers, const std::string& folder,
    Sequential& model, const Pipeline& test) {
  constexpr std::chrono::milliseconds kLook{100};
  const std::vector<NamedTensor> variables = VariablesOf(model);
  ParameterReader reader(job, variables, servers);
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
      load.allow_unexpected = true;  // the optimizer's
      checkpoints->Load(variables, load);
      std::printf("%s: test accuracy %.4f\n", scored.c_str(), ScoreOf(job, model, test).accuracy);
      std::fflush(stdout);
    } else if (finished) {
      return;
    } else {
      std::this_thread::sleep_for(kLook);
    }
  }
}

}  // namespace dtrun::models
