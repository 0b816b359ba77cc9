#include "models/callbacks/learning_rate.h"

#include <dtrun/error.h>

#include <cmath>

#include "models/text.h"

namespace dtrun::models {
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

// The last one sets the full rate, in the first batch after the warm-up.
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

}  // namespace dtrun::models
