#ifndef DTRUN_MODELS_PROGRAMS_TRAINING_H_
#define DTRUN_MODELS_PROGRAMS_TRAINING_H_

#include <dtrun/context.h>
#include <dtrun/strategy.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/callbacks/callback.h"
#include "models/programs/preparation.h"
#include "models/programs/training_options.h"
#include "models/report/run_report.h"
#include "models/train/report.h"

namespace dtrun::models {

struct Trained {
  TrainingResult result;
  std::vector<std::string> not_written;  ///< checkpoints that a disk had no room for
  RankTime time;                         ///< where this rank's training time went
};

/// Trains as the options say and evaluates the test set. Collective. Rank 0 prints. Throws what
/// Trainer::Fit throws, and Error kMismatch when the ranks' parameters differ in the end.
/// What a strategy refuses, such as an optimizer that it cannot take, is thrown as AgreedError.
Trained Train(Context& job, Strategy& strategy, const TrainOptions& options, Preparation& ready);

/// What the options ask for besides training, in the order in which it is called: what sets the
/// rate is before what reports it. `rate`: of a step. `after_throughput`, which may be null, is
/// called behind what measures the speed and before what shows it. Without StepLosses.
CallbackList MakeRunCallbacks(
    Context& job, const TrainOptions& options, const std::function<double(uint64_t)>& rate,
    std::unique_ptr<Callback> after_throughput);

/// An epoch's numbers, from what callbacks are given.
EpochResult EpochResultOf(const Logs& logs);

/// Train, on the GPU of `ready`. The network of the CPU has the parameters and the optimizer's
/// state whenever a callback wants them: after steps of which a checkpoint is made, at the ends of
/// epochs where somebody looks, and at the end. Inside an epoch nobody knows the loss.
Trained TrainOnGpu(
    Context& job, Strategy& strategy, const TrainOptions& options, Preparation& ready);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_PROGRAMS_TRAINING_H_
