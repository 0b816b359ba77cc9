#include "models/callbacks/callbacks.h"

#include <dtrun/error.h>
#include <dtrun/metrics.h>
#include <dtrun/optimizer.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "models/message_text.h"

namespace dtrun::models {

namespace {

void Append(const Buffer& values, std::vector<float>& copy) {
  const auto* value = static_cast<const float*>(values.data);
  copy.insert(copy.end(), value, value + values.count);
}

// The parameters, then the network's buffers.
std::vector<float> Copy(Sequential& model) {
  std::vector<float> copy;
  for (const NamedBuffer& weights : model.BorrowWeights()) Append(weights.buffer, copy);
  return copy;
}

void CopyBack(const std::vector<float>& copy, Replica& replica) {
  const float* next = copy.data();
  for (const NamedBuffer& values : replica.BorrowWeights()) {
    std::memcpy(values.buffer.data, next, values.buffer.bytes());
    next += values.buffer.count;
  }
  replica.ReturnWeights();
}

}  // namespace

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)),
      monitor_(options_.monitor, options_.mode, options_.min_delta),
      best_(monitor_.worst()) {}

void EarlyStopping::OnTrainBegin(Run&) {
  best_ = monitor_.worst();
  best_epoch_ = waited_ = 0;
  best_weights_.clear();
}

void EarlyStopping::OnEpochEnd(Run& run, Logs& logs) {
  const double value = monitor_.ValueIn(logs);
  const uint64_t epoch = run.position.epoch - 1;
  if (epoch < options_.start_from_epoch) return;
  if (monitor_.IsBetter(value, best_)) {
    best_ = value;
    best_epoch_ = epoch;
    waited_ = 0;
    if (options_.restore_best_weights) best_weights_ = Copy(run.model());
    return;
  }
  if (++waited_ < std::max<uint64_t>(options_.patience, 1)) return;
  run.StopTraining();
  if (options_.print && run.is_rank_0()) {
    options_.print(Text(
        "EarlyStopping: ", monitor_.name(), " has not improved for ", waited_,
        waited_ == 1 ? " epoch" : " epochs", "; best was ", best_, " in epoch ", best_epoch_ + 1));
  }
}

void EarlyStopping::OnTrainEnd(Run& run, const Logs&) {
  if (best_weights_.empty()) return;
  CopyBack(best_weights_, run.replica());
}

namespace {

void SetRate(Run& run, double rate, const std::string& when) {
  if (!(rate > 0) || std::isinf(rate)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("the schedule gave ", rate, " for ", when, ", expected a learning rate above 0"));
  }
  run.set_learning_rate(rate);
}

}  // namespace

void LearningRateScheduler::OnEpochBegin(Run& run) {
  const uint64_t epoch = run.position.epoch;
  const double rate = schedule_(epoch, run.learning_rate());
  SetRate(run, rate, Text("epoch ", epoch));
  if (print_ && run.is_rank_0())
    print_(Text("Epoch ", epoch + 1, ": LearningRateScheduler setting learning rate to ", rate));
}

void StepSchedule::OnBatchBegin(Run& run) {
  SetRate(run, schedule_(run.position.step), Text("step ", run.position.step));
}

LearningRateWarmup::LearningRateWarmup(const WarmupOptions& options) : options_(options) {
  if (!(options.base_rate > 0) || std::isinf(options.base_rate)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("LearningRateWarmup: base_rate is ", options.base_rate, ", expected above 0"));
  }
  if (options.epochs == 0) {
    throw Error(
        ErrorCode::kInvalidArgument, "LearningRateWarmup: epochs is 0, expected at least 1");
  }
  if (!(options.factor >= 0) || std::isinf(options.factor)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("LearningRateWarmup: factor is ", options.factor, ", expected 0 or more"));
  }
}

// The last call sets the full rate, in the first batch after the warm-up.
void LearningRateWarmup::OnBatchBegin(Run& run) {
  const TrainingPosition& at = run.position;
  if (at.epoch > options_.epochs || (at.epoch == options_.epochs && at.batch > 0)) return;
  if (run.steps == 0) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "the number of steps in an epoch is not known, expected FitOptions::steps_per_epoch");
  }
  const double factor = options_.factor > 0 ? options_.factor : run.world().size();
  const double progress = (static_cast<double>(at.epoch) +
                           static_cast<double>(at.batch) / static_cast<double>(run.steps)) /
                          static_cast<double>(options_.epochs);
  run.set_learning_rate(options_.base_rate * (1 + (factor - 1) * progress));
}

void PrintLearningRate::OnEpochEnd(Run& run, Logs&) {
  if (!run.is_rank_0()) return;
  print_(Text("Learning rate for epoch ", run.position.epoch, " is ", run.learning_rate()));
}

void Throughput::OnEpochBegin(Run& run) {
  run.Settle();
  run.world().Barrier();
  exposed_before_ = run.replica().statistics().total.exposed_s;
  start_ = std::chrono::steady_clock::now();
  seconds_ = 0;
  examples_ = 0;
}

void Throughput::OnBatchEnd(Run& run, const Logs&) {
  examples_ += run.global_batch;
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  exposed_ = run.replica().statistics().total.exposed_s - exposed_before_;
}

void Throughput::OnEpochEnd(Run& run, Logs& logs) {
  run.Settle();
  double shared[] = {run.is_rank_0() ? seconds_ : 0, seconds_ > 0 ? exposed_ / seconds_ : 0};
  run.world().AllReduce(Buffer(shared, 2));
  logs["seconds"] = shared[0];
  logs["images_per_s"] = static_cast<double>(examples_) / shared[0];
  logs["exposed_share"] = shared[1] / run.world().size();
}

void StepLosses::OnEpochBegin(Run&) { of_epoch_.clear(); }

void StepLosses::OnBatchEnd(Run& run, const Logs&) { of_epoch_.push_back(run.batch_loss); }

void StepLosses::OnEpochEnd(Run& run, Logs&) {
  run.Settle();
  run.world().AllReduce(Buffer(of_epoch_.data(), of_epoch_.size()));
  losses_.insert(losses_.end(), of_epoch_.begin(), of_epoch_.end());
}

Timeline::Timeline(Context& job, TimelineOptions options)
    : job_(job), options_(std::move(options)) {
  if (options_.path.empty())
    throw Error(ErrorCode::kInvalidArgument, "Timeline: path is '', expected a file name");
  if (options_.steps == 0)
    throw Error(ErrorCode::kInvalidArgument, "Timeline: steps is 0, expected at least 1");
}

void Timeline::OnBatchBegin(Run& run) {
  if (run.position.step != options_.first_step) return;
  job_.StartTimeline(options_.path);
  runs_ = true;
}

void Timeline::OnBatchEnd(Run& run, const Logs&) {
  if (run.position.step >= options_.first_step + options_.steps) Stop();
}

void Timeline::OnTrainEnd(Run&, const Logs&) { Stop(); }

void Timeline::Stop() {
  if (!std::exchange(runs_, false)) return;
  job_.StopTimeline();
}

void ReportProgress::OnBatchEnd(Run& run, const Logs&) {
  examples_ += run.examples;
  job_.ReportProgress(run.position.step, examples_);
}

void BroadcastVariables::OnTrainBegin(Run& run) {
  run.Settle();
  BroadcastParameters(run.world(), run.model().parameters(), root_);
  BroadcastOptimizerState(run.world(), run.optimizer(), root_);
  run.replica().ParametersChanged();
}

void MetricAverage::OnEpochEnd(Run& run, Logs& logs) { logs = AverageMetrics(run.world(), logs); }

}  // namespace dtrun::models
