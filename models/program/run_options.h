#ifndef DTRUN_MODELS_PROGRAM_RUN_OPTIONS_H_
#define DTRUN_MODELS_PROGRAM_RUN_OPTIONS_H_

#include <cstdint>

#include "models/train/options.h"

namespace dtrun::models {

/// What the options come to in a job: pure functions.

uint64_t GlobalBatchOf(const TrainOptions& options, int ranks);

/// Of an epoch, and of the whole training, as the options cut them; `images` are trained on.
uint64_t StepsPerEpoch(const TrainOptions& options, uint64_t images, int ranks);
uint64_t TotalSteps(const TrainOptions& options, uint64_t images, int ranks);

/// The learning rate of a step (from 0). With a warm-up it grows from that of one rank to `ranks`
/// times it (see LearningRateWarmup); then, or from the beginning, it follows the schedule. Throws
/// Error kInvalidArgument for a schedule that cannot be.
double RateAt(const TrainOptions& options, uint64_t step, uint64_t images, int ranks);

}  // namespace dtrun::models

#endif
