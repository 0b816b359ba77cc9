#ifndef DTRUN_MODELS_PROGRAM_GPU_TRAINING_H_
#define DTRUN_MODELS_PROGRAM_GPU_TRAINING_H_

#include <dtrun/context.h>
#include <dtrun/strategy.h>

#include "models/program/preparation.h"
#include "models/program/training.h"

namespace dtrun::models {

/// Train, on the GPU of `ready`. The network of the CPU has the parameters and the optimizer's
/// state whenever a callback wants them: after steps of which a checkpoint is made, at the ends of
/// epochs where somebody looks, and at the end. Inside an epoch nobody knows the loss.
Trained TrainOnGpu(
    Context& job, Strategy& strategy, const TrainOptions& options, Preparation& ready);

}  // namespace dtrun::models

#endif
