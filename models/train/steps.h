#ifndef DTRUN_MODELS_TRAIN_STEPS_H_
#define DTRUN_MODELS_TRAIN_STEPS_H_

#include <span>
#include <vector>

#include "models/losses/loss.h"
#include "models/metrics/metric.h"
#include "models/train/replica.h"

namespace dtrun::models {

/// What a loop does with one batch, made of Replica's parts. `metrics` are updated with every
/// example. The value is this replica's part of the global batch's loss: the parts of all replicas
/// add up to it (AverageLoss), regularisation included, as it is in the losses that metrics see.

/// Forward with dropout, loss, backward. `replica.Apply()` is left to the caller.
double ComputeGradients(
    Replica& replica, const ReplicaBatch& batch, const Loss& loss,
    std::span<Metric* const> metrics);

/// ComputeGradients and Apply. Collective.
double TrainStep(
    Replica& replica, const ReplicaBatch& batch, const Loss& loss,
    std::span<Metric* const> metrics);

/// Forward without dropout, and loss.
double TestStep(
    Replica& replica, const ReplicaBatch& batch, const Loss& loss,
    std::span<Metric* const> metrics);

/// Appends the outputs, (examples, outputs), to `outputs`.
void PredictStep(Replica& replica, const ReplicaBatch& batch, std::vector<float>& outputs);

}  // namespace dtrun::models

#endif
