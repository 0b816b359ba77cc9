#ifndef DTRUN_MODELS_PROGRAM_TRAINING_H_
#define DTRUN_MODELS_PROGRAM_TRAINING_H_

#include <dtrun/context.h>
#include <dtrun/strategy.h>

#include <string>
#include <vector>

#include "models/program/preparation.h"
#include "models/report/run_report.h"
#include "models/train/options.h"
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

}  // namespace dtrun::models

#endif
