#ifndef DTRUN_MODELS_PROGRAM_TRAINING_H_
#define DTRUN_MODELS_PROGRAM_TRAINING_H_

#include <dtrun/context.h>

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
Trained Train(Context& job, const TrainOptions& options, Preparation& ready);

}  // namespace dtrun::models

#endif
