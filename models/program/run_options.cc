#include "models/program/run_options.h"

#include <algorithm>

#include "models/data/sampling.h"
#include "models/optim/by_name.h"

namespace dtrun::models {

uint64_t GlobalBatchOf(const TrainOptions& options, int ranks) {
  if (options.global_batch_size > 0) return options.global_batch_size;
  return options.batch_size * static_cast<uint64_t>(ranks);
}

uint64_t StepsPerEpoch(const TrainOptions& options, uint64_t images, int ranks) {
  if (options.steps_per_epoch > 0) return options.steps_per_epoch;
  return BatchesPerEpoch(images, GlobalBatchOf(options, ranks));
}

uint64_t TotalSteps(const TrainOptions& options, uint64_t images, int ranks) {
  const uint64_t steps = StepsPerEpoch(options, images, ranks) * options.epochs;
  return options.max_steps > 0 ? std::min(steps, options.max_steps) : steps;
}

double RateAt(const TrainOptions& options, uint64_t step, uint64_t images, int ranks) {
  const uint64_t steps = TotalSteps(options, images, ranks);
  const uint64_t warmup = options.warmup_epochs * StepsPerEpoch(options, images, ranks);
  const double factor = warmup > 0 ? ranks : 1;
  ScheduleSettings settings;
  settings.learning_rate = options.learning_rate * factor;
  settings.steps = steps;
  settings.warmup_steps = options.warmup_steps;
  if (options.schedule == "cooldown") settings.fraction = options.cooldown;
  const double rate = MakeSchedule(options.schedule, settings).rate(step);
  if (step >= warmup) return rate;
  const double done = static_cast<double>(step) / static_cast<double>(warmup);
  return std::min(rate, options.learning_rate * (1 + (factor - 1) * done));
}

}  // namespace dtrun::models
