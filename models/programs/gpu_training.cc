// The loop of Trainer::Fit, with steps on a GPU. The host enqueues steps ahead of the GPU. It waits
// for the GPU only after the last step of an epoch and before a checkpoint.

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "models/callbacks/log_values.h"
#include "models/data/sampling.h"
#include "models/message_text.h"
#include "models/metrics/metric.h"
#include "models/programs/training.h"
#include "models/programs/training_options.h"
#include "models/report/page.h"
#include "models/train/agreement.h"
#include "models/train/replica.h"

namespace dtrun::models {
namespace {

// Adds the exposed share of the GPU. Throughput knows only the reducer of the CPU.
class ExposedOnGpu : public Callback {
 public:
  explicit ExposedOnGpu(const GpuReplica& gpu) : gpu_(gpu) {}
  std::string name() const override { return "ExposedOnGpu"; }
  void OnEpochBegin(Run&) override { before_ = gpu_.exposed_seconds(); }
  void OnEpochEnd(Run& run, Logs& logs) override {
    double share = (gpu_.exposed_seconds() - before_) / logs.at("seconds");
    run.world().AllReduce(Buffer(&share, 1), ReduceOp::kAverage);
    logs["exposed_share"] = share;
  }

 private:
  const GpuReplica& gpu_;
  double before_ = 0;
};

class GpuLoop {
 public:
  GpuLoop(Context& job, Strategy& strategy, const TrainOptions& options, Preparation& ready)
      : job_(job),
        options_(options),
        ready_(ready),
        gpu_(*ready.gpu.replica),
        replica_(strategy, *ready.model, *ready.optimizer),
        agreement_(job.world()),
        run_(replica_, metrics_) {
    run_.epochs = options.epochs;
    run_.steps = StepsPerEpoch(options, images(), job.size());
  }

  Trained Fit();

 private:
  uint64_t images() const { return ready_.data->info.train_examples; }
  bool has_steps_left() const {
    return run_.position.batch < run_.steps &&
           (options_.max_steps == 0 || run_.position.step < options_.max_steps);
  }
  // True if a callback may read the parameters between epochs.
  bool is_watched() const {
    return !options_.checkpoint_dir.empty() || options_.early_stopping > 0;
  }
  bool makes_checkpoint() const {
    return options_.checkpoint_every > 0 && !options_.checkpoint_dir.empty() &&
           run_.position.step % options_.checkpoint_every == 0;
  }

  template <typename Turn>
  void Call(const Turn& turn) {
    for (const std::unique_ptr<Callback>& callback : callbacks_)
      agreement_.Run(callback->name(), [&] { turn(*callback); });
  }
  void Settle() {
    if (agreement_.Settle()) run_.StopTraining();
  }

  void ToGpu();
  void FromGpu();
  Logs RunEpoch();
  void RunStep();
  const std::vector<uint32_t>& OrderOf(uint64_t epoch);
  void AddLosses(uint64_t first_batch);
  void AddMetrics(const GpuMetrics& sums);
  void ResetMetrics();
  Logs SumMetrics(const std::string& prefix);
  Logs Evaluate();
  void CheckLoss(double loss) const;

  Context& job_;
  const TrainOptions& options_;
  Preparation& ready_;
  GpuReplica& gpu_;
  Replica replica_;
  Agreement agreement_;
  Mean loss_;
  SparseCategoricalAccuracy accuracy_;
  Metric* metrics_[2] = {&loss_, &accuracy_};
  Run run_;
  CallbackList callbacks_;
  std::vector<double> step_losses_;
  std::vector<uint32_t> order_;
  uint64_t order_epoch_ = 0;
};

void GpuLoop::ToGpu() {
  gpu_.SetParameters();
  gpu_.SetState(replica_.distributed_optimizer().BorrowState());
  if (run_.loss_scale) gpu_.SetLossScale(*run_.loss_scale);
}

void GpuLoop::FromGpu() {
  StrategyOptimizer& optimizer = replica_.distributed_optimizer();
  gpu_.GetParameters(optimizer.BorrowValues());
  gpu_.GetState(optimizer.BorrowState());
  optimizer.ReturnValues();
  optimizer.ReturnState();
  replica_.ParametersChanged();
  if (options_.dtype == "f16") run_.loss_scale = gpu_.loss_scale();
}

void GpuLoop::AddMetrics(const GpuMetrics& sums) {
  const auto examples = static_cast<double>(sums.examples);
  const double values[] = {sums.loss_sum, static_cast<double>(sums.correct)};
  for (size_t i = 0; i < 2; ++i) {
    metrics_[i]->state()[0] += values[i];
    metrics_[i]->state()[1] += examples;
  }
}

void GpuLoop::ResetMetrics() {
  for (Metric* metric : metrics_) metric->Reset();
}

Logs GpuLoop::SumMetrics(const std::string& prefix) {
  SumOverRanks(job_.world(), metrics_);
  Logs logs;
  for (const Metric* metric : metrics_) logs[prefix + metric->name()] = metric->Result();
  return logs;
}

void GpuLoop::CheckLoss(double loss) const {
  if (std::isfinite(loss)) return;
  throw AgreedError(
      ErrorCode::kInvalidArgument, kDiverged,
      Text(
          "the loss is ", loss, " in epoch ", run_.position.epoch + 1,
          ": training has diverged; a lower learning rate or a warm-up may help"));
}

void GpuLoop::RunStep() {
  const uint64_t batch = run_.position.batch;
  const Range global = GlobalBatch(batch, images(), ready_.global_batch);
  const Range mine = PartOf(global, job_.rank(), job_.size());
  run_.global_batch = global.size();
  run_.examples = mine.size();
  Call([&](Callback& callback) { callback.OnBatchBegin(run_); });
  GpuStep step;
  step.step = run_.position.step;
  step.first_example = mine.begin;
  step.first_position = mine.begin - global.begin;
  step.examples = mine.size();
  step.global_batch = global.size();
  step.loss_slot = batch;
  step.learning_rate = run_.learning_rate();
  if (batch + 1 < run_.steps) {
    const Range next =
        PartOf(GlobalBatch(batch + 1, images(), ready_.global_batch), job_.rank(), job_.size());
    step.next_example = next.begin;
    step.next_examples = next.size();
  }
  gpu_.Step(step);
  ++run_.position.batch;
  replica_.set_step(++run_.position.step);
  run_.epoch_examples += global.size();
  // The host computes the next order while the GPU works on its queue.
  if (!has_steps_left() && run_.position.epoch + 1 < options_.epochs)
    OrderOf(run_.position.epoch + 1);
  if (makes_checkpoint()) FromGpu();
  if (makes_checkpoint() || !has_steps_left()) AddMetrics(gpu_.TakeMetrics());
  Call([&](Callback& callback) { callback.OnBatchEnd(run_, {}); });
  if (run_.stop()) agreement_.RequestStop();
  Settle();
}

void GpuLoop::AddLosses(uint64_t first_batch) {
  if (!options_.log_steps) return;
  std::vector<double> losses = gpu_.Losses(run_.position.batch);
  job_.world().AllReduce(Buffer(losses.data(), losses.size()));
  step_losses_.insert(
      step_losses_.end(), losses.begin() + static_cast<ptrdiff_t>(first_batch), losses.end());
}

// Caches the order of one epoch.
const std::vector<uint32_t>& GpuLoop::OrderOf(uint64_t epoch) {
  if (order_.empty() || order_epoch_ != epoch) order_ = EpochOrder(options_.seed, epoch, images());
  order_epoch_ = epoch;
  return order_;
}

Logs GpuLoop::RunEpoch() {
  const uint64_t epoch = run_.position.epoch, first_batch = run_.position.batch;
  if (first_batch == 0) {
    ResetMetrics();
    run_.epoch_examples = 0;
  }
  gpu_.SetOrder(OrderOf(epoch));
  Call([&](Callback& callback) { callback.OnEpochBegin(run_); });
  Settle();
  while (!run_.stop() && has_steps_left()) RunStep();
  run_.cut_short = run_.position.batch < run_.steps;
  AddMetrics(gpu_.TakeMetrics());
  AddLosses(first_batch);
  Logs logs = SumMetrics("");
  CheckLoss(logs.at("loss"));
  logs["learning_rate"] = run_.learning_rate();
  run_.validating = true;
  for (const auto& [name, value] : Evaluate()) logs["val_" + name] = value;
  run_.validating = false;
  ++run_.position.epoch;
  run_.position.batch = 0;
  if (is_watched()) FromGpu();
  Call([&](Callback& callback) { callback.OnEpochEnd(run_, logs); });
  if (run_.stop()) agreement_.RequestStop();
  Settle();
  return logs;
}

Logs GpuLoop::Evaluate() {
  ResetMetrics();
  Call([&](Callback& callback) { callback.OnTestBegin(run_); });
  const Range mine = PartOf({0, ready_.data->info.test_examples}, job_.rank(), job_.size());
  AddMetrics(gpu_.Evaluate(mine.begin, mine.size()));
  Settle();
  const Logs logs = SumMetrics("");
  Call([&](Callback& callback) { callback.OnTestEnd(run_, logs); });
  Settle();
  return logs;
}

Trained GpuLoop::Fit() {
  Trained trained;
  TrainingResult& result = trained.result;
  callbacks_ = MakeRunCallbacks(
      job_, options_,
      [this](uint64_t step) { return RateAt(options_, step, images(), job_.size()); },
      std::make_unique<ExposedOnGpu>(gpu_));
  ResetMetrics();
  Call([&](Callback& callback) { callback.OnTrainBegin(run_); });
  Settle();
  ToGpu();
  Logs last;
  while (run_.position.epoch < options_.epochs && !run_.stop() &&
         (options_.max_steps == 0 || run_.position.step < options_.max_steps)) {
    last = RunEpoch();
    result.epochs.push_back(EpochResultOf(last));
  }
  FromGpu();
  Call([&](Callback& callback) { callback.OnTrainEnd(run_, last); });
  Settle();
  // EarlyStopping may have restored the best parameters.
  gpu_.SetParameters();
  callbacks_.clear();
  const Logs test = Evaluate();
  const uint64_t digest = DigestOf(ready_.model->parameters());
  CheckEqualOnAllRanks(digest, job_.world());
  trained.steps = run_.position.step;
  result.ranks = job_.size();
  result.test_loss = test.at("loss");
  result.test_accuracy = test.at("accuracy");
  result.parameter_digest = ToHex(digest);
  result.step_losses = std::move(step_losses_);
  trained.not_written = run_.not_written();
  double seconds = 0;
  for (const EpochResult& epoch : result.epochs) seconds += epoch.seconds;
  trained.time = SplitTrainingTime(seconds, gpu_.exposed_seconds(), 0);
  if (job_.rank() == 0) PrintLine(ResultLine(result, ready_.data->info.test_examples));
  return trained;
}

}  // namespace

Trained TrainOnGpu(
    Context& job, Strategy& strategy, const TrainOptions& options, Preparation& ready) {
  return GpuLoop(job, strategy, options, ready).Fit();
}

}  // namespace dtrun::models
