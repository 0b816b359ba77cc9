#include "models/programs/training.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <utility>

#include "models/callbacks/callbacks.h"
#include "models/callbacks/checkpoints.h"
#include "models/callbacks/example_log.h"
#include "models/callbacks/log_values.h"
#include "models/callbacks/progress_bar.h"
#include "models/callbacks/tensorboard.h"
#include "models/data/distribute.h"
#include "models/losses/loss.h"
#include "models/message_text.h"
#include "models/metrics/metric.h"
#include "models/programs/training_options.h"
#include "models/report/page.h"
#include "models/train/agreement.h"
#include "models/train/batch.h"
#include "models/train/steps.h"
#include "models/train/trainer.h"

namespace dtrun::models {
namespace {

EpochResult EpochResultOf(const Logs& logs) {
  return {
      .loss = logs.at("loss"),
      .train_accuracy = logs.at("accuracy"),
      .test_loss = logs.at("val_loss"),
      .test_accuracy = logs.at("val_accuracy"),
      .seconds = logs.at("seconds"),
      .images_per_s = logs.at("images_per_s"),
      .exposed_share = logs.at("exposed_share")};
}

// The objects that both training loops use.
class Session {
 public:
  Session(Context& job, Strategy& strategy, const TrainOptions& options, Preparation& ready)
      : job_(job),
        options_(options),
        ready_(ready),
        tree_(MakeTree()),
        replica_(
            strategy, *ready.model, *ready.optimizer,
            {.overlap = options.overlap,
             .adasum = options.adasum,
             .tree = tree_.get(),
             .loss_scale = LossScaleFor(options)}),
        loss_(SparseCategoricalCrossentropy::For(LastLayerOf(ready.model->description()))),
        trainer_(replica_, loss_, MakeMetrics(SparseCategoricalAccuracy())),
        train_(Distributed(strategy, TrainPipeline())),
        test_(Distributed(strategy, ready.data->test.Batch(ready.global_batch))) {}

  Trained Fit(KeptTraining& kept, const PreemptionNotice* notice);
  Trained CustomLoop();

 private:
  static std::optional<LossScaleOptions> LossScaleFor(const TrainOptions& options) {
    if (options.dtype != "f16") return std::nullopt;
    return LossScaleOptions();
  }
  std::unique_ptr<GradientTree> MakeTree() const {
    if (options_.deterministic == 0) return nullptr;
    return std::make_unique<GradientTree>(ready_.model->parameters(), options_.deterministic, job_);
  }
  Pipeline TrainPipeline() const {
    const Pipeline batches =
        ready_.data->train.Shuffle({.seed = options_.seed}).Batch(ready_.global_batch);
    return options_.prefetch > 0 ? batches.Prefetch(options_.prefetch) : batches;
  }
  StrategyBatches Distributed(Strategy& strategy, const Pipeline& pipeline) const {
    return StrategyBatches(
        strategy.DistributeDataset(PipelineDataset(pipeline, ready_.threads), InputSplit::kData));
  }
  double Rate(uint64_t step) const {
    return RateAt(options_, step, ready_.data->info.train_examples, job_.launch_size());
  }
  bool says_lines() const { return options_.verbose > 0; }
  CallbackList MakeCallbacks(std::vector<double>& step_losses, bool resumes);
  Logs TrainOneEpoch(uint64_t epoch, std::vector<double>& step_losses);
  void Finish(Trained& trained);

  Context& job_;
  const TrainOptions& options_;
  Preparation& ready_;
  std::unique_ptr<GradientTree> tree_;
  Replica replica_;
  SparseCategoricalCrossentropy loss_;
  Trainer trainer_;
  StrategyBatches train_, test_;
};

void PrintProblem(const std::string& line) {
  std::fprintf(stderr, "cnn_fmnist: %s\n", line.c_str());
}

// Callbacks that set the learning rate come before callbacks that report it.
CallbackList Session::MakeCallbacks(std::vector<double>& step_losses, bool resumes) {
  CallbackList list;
  if (!options_.checkpoint_dir.empty()) {
    list.push_back(std::make_unique<BackupAndRestore>(BackupAndRestoreOptions{
        .folder = options_.checkpoint_dir,
        .every_batches = options_.checkpoint_every,
        .max_to_keep = options_.keep_checkpoints,
        .restore = resumes,
        .delete_at_end = false,
        .print = PrintProblem}));
  }
  list.push_back(std::make_unique<StepSchedule>([this](uint64_t step) { return Rate(step); }));
  list.push_back(std::make_unique<Throughput>());
  if (options_.log_steps) list.push_back(std::make_unique<StepLosses>(step_losses));
  if (!options_.example_log.empty())
    list.push_back(std::make_unique<ExampleLog>(options_.example_log, job_.losses(), PrintProblem));
  list.push_back(std::make_unique<ReportProgress>(job_));
  if (options_.verbose > 0) {
    const int columns = options_.verbose == 1 ? job_.terminal_columns() : 0;
    list.push_back(std::make_unique<ProgressBar>(ProgressBarOptions{.columns = columns}));
  }
  if (!options_.tensorboard.empty())
    list.push_back(std::make_unique<TensorBoard>(TensorBoardOptions{
        .log_dir = options_.tensorboard,
        .hparams = HParamsOf(options_, job_.launch_size()),
        .command = options_.command}));
  if (options_.early_stopping > 0) {
    list.push_back(std::make_unique<EarlyStopping>(EarlyStoppingOptions{
        .patience = options_.early_stopping, .restore_best_weights = true, .print = PrintLine}));
  }
  return list;
}

Trained Session::Fit(KeptTraining& kept, const PreemptionNotice* notice) {
  Trained trained;
  if (notice != nullptr) trainer_.Watch(*notice);
  const FitOptions fit{
      .epochs = options_.epochs,
      .steps_per_epoch = options_.steps_per_epoch,
      .max_steps = options_.max_steps,
      .validation_data = &test_,
      .kept = &kept};
  kept.Attach(job_);
  const bool is_kept = job_.losses() > 0 && kept.IsKeptBySome(job_.world());
  const CallbackList callbacks =
      MakeCallbacks(trained.result.step_losses, options_.resume && !is_kept);
  History history = trainer_.Fit(train_, fit, callbacks);
  for (const Logs& logs : history.logs) trained.result.epochs.push_back(EpochResultOf(logs));
  trained.not_written = std::move(history.not_written);
  Finish(trained);
  return trained;
}

// One epoch of the custom loop, made of the same parts as Fit.
Logs Session::TrainOneEpoch(uint64_t epoch, std::vector<double>& step_losses) {
  Mean mean_loss;
  SparseCategoricalAccuracy accuracy;
  Metric* const metrics[] = {&mean_loss, &accuracy};
  std::vector<double> losses;
  job_.world().Barrier();
  const double exposed_before = replica_.statistics().total.exposed_s;
  const auto start = std::chrono::steady_clock::now();
  const uint64_t steps =
      StepsPerEpoch(options_, ready_.data->info.train_examples, job_.launch_size());
  const uint64_t last = TotalSteps(options_, ready_.data->info.train_examples, job_.launch_size());
  uint64_t examples = 0;
  train_.StartEpoch(epoch);
  ReplicaBatch batch;
  while (losses.size() < steps && replica_.step() < last && train_.Next(batch)) {
    replica_.optimizer().set_learning_rate(Rate(replica_.step()));
    losses.push_back(TrainStep(replica_, batch, loss_, metrics));
    examples += batch.global_batch;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  double exposed = (replica_.statistics().total.exposed_s - exposed_before) / seconds.count();
  job_.world().AllReduce(Buffer(&exposed, 1), ReduceOp::kAverage);
  job_.world().AllReduce(Buffer(losses.data(), losses.size()));
  SumOverRanks(job_.world(), metrics);
  if (options_.log_steps) step_losses.insert(step_losses.end(), losses.begin(), losses.end());
  return {
      {"loss", mean_loss.Result()},
      {"accuracy", accuracy.Result()},
      {"seconds", seconds.count()},
      {"images_per_s", static_cast<double>(examples) / seconds.count()},
      {"exposed_share", exposed}};
}

Trained Session::CustomLoop() {
  Trained trained;
  const uint64_t last = TotalSteps(options_, ready_.data->info.train_examples, job_.launch_size());
  for (uint64_t epoch = 0; epoch < options_.epochs && replica_.step() < last; ++epoch) {
    Logs logs = TrainOneEpoch(epoch, trained.result.step_losses);
    if (!std::isfinite(logs["loss"])) {
      throw AgreedError(
          ErrorCode::kInvalidArgument, kDiverged,
          Text("the loss of epoch ", epoch + 1, " is ", logs["loss"], ": training has diverged"));
    }
    for (const auto& [name, value] : trainer_.Evaluate(test_)) logs["val_" + name] = value;
    trained.result.epochs.push_back(EpochResultOf(logs));
    if (says_lines() && job_.rank() == 0)
      PrintLine(EpochLine(epoch + 1, options_.epochs, logs, job_.size()));
  }
  Finish(trained);
  return trained;
}

void Session::Finish(Trained& trained) {
  TrainingResult& result = trained.result;
  const Logs test = trainer_.Evaluate(test_);
  const uint64_t digest = DigestOf(*ready_.model);
  CheckEqualOnAllRanks(digest, job_.world());
  trained.steps = replica_.step();
  result.ranks = job_.size();
  result.test_loss = test.at("loss");
  result.test_accuracy = test.at("accuracy");
  result.parameter_digest = ToHex(digest);
  double seconds = 0;
  for (const EpochResult& epoch : result.epochs) seconds += epoch.seconds;
  trained.time =
      SplitTrainingTime(seconds, replica_.statistics().total.exposed_s, train_.wait_seconds());
  if (job_.rank() == 0) PrintLine(ResultLine(result, ready_.data->info.test_examples));
}

// If the strategy refuses the network or the optimizer, all ranks get the same error.
std::unique_ptr<Session> MakeSession(
    Context& job, Strategy& strategy, const TrainOptions& options, Preparation& ready) {
  try {
    return std::make_unique<Session>(job, strategy, options, ready);
  } catch (const Error& error) {
    const bool refused =
        error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kUnavailable;
    if (!refused) throw;
    throw AgreedError(error.code(), kUsage, error.what());
  }
}

}  // namespace

Trained Train(
    Context& job, Strategy& strategy, const TrainOptions& options, Preparation& ready,
    KeptTraining& kept, const PreemptionNotice* notice) {
  const std::unique_ptr<Session> session = MakeSession(job, strategy, options, ready);
  return options.loop == "custom" ? session->CustomLoop() : session->Fit(kept, notice);
}

}  // namespace dtrun::models
