#ifndef DTRUN_MODELS_PROGRAM_GPU_PREPARATION_H_
#define DTRUN_MODELS_PROGRAM_GPU_PREPARATION_H_

#include <dtrun/context.h>

#include <string>

#include "models/program/preparation.h"

namespace dtrun::models {

/// What of these options no GPU can do yet, and what is expected; "" if there is nothing.
///   "--adasum: not on a GPU; expected --device cpu"
std::string GpuObstacle(const TrainOptions& options);

/// Collective: which device the options mean, the same kind on all ranks: `ready.options.device` is
/// "cpu" or "cuda" then, and the batch size a number. Needs the options and the data. What is wrong
/// is in the verdict.
void ChooseDeviceTogether(Context& job, Preparation& ready);

/// Collective: makes the replica on the GPU that was chosen, with the data set in its memory or
/// streamed to it. Needs the model. There is none where the verdict is another than kSuccess.
Verdict MakeGpuReplica(Context& job, Preparation& ready);

/// Instead of a GPU that was tried for `auto`.
void UseCpu(const TrainOptions& given, const std::string& why_not, Preparation& ready);

}  // namespace dtrun::models

#endif
