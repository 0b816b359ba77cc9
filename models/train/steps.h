#ifndef DTRUN_MODELS_TRAIN_STEPS_H_
#define DTRUN_MODELS_TRAIN_STEPS_H_

#include <span>
#include <vector>

#include "models/losses/loss.h"
#include "models/metrics/metric.h"
#include "models/train/batch.h"
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

/// Three training loops to copy and change, each one function. All train the
/// replicas of all ranks together, update `metrics` with this rank's examples (SumOverRanks makes
/// them those of all), and return this rank's part of the sum of the global batches' losses. They
/// compute the same; Trainer::Fit does too, with callbacks and validation around it.

/// For-each over a distributed data set: what is left of the epoch.
double ForEachBatch(
    Replica& replica, BatchSource& data, const Loss& loss, std::span<Metric* const> metrics);

/// An iterator and a number of steps, which may span epochs: `*epoch` is the one that `data` is in,
/// and grows with it.
double TrainSteps(
    Replica& replica, BatchSource& data, uint64_t steps, const Loss& loss,
    std::span<Metric* const> metrics, uint64_t* epoch);

/// A whole epoch as one call.
double TrainEpoch(
    Replica& replica, BatchSource& data, uint64_t epoch, const Loss& loss,
    std::span<Metric* const> metrics);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_TRAIN_STEPS_H_
