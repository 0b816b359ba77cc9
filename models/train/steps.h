#ifndef DTRUN_MODELS_TRAIN_STEPS_H_
#define DTRUN_MODELS_TRAIN_STEPS_H_

#include <span>
#include <vector>

#include "models/losses/loss.h"
#include "models/metrics/metric.h"
#include "models/train/batch.h"
#include "models/train/replica.h"

namespace dtrun::models {

/// The work of a loop for one batch, made of Replica's parts. `metrics` are updated with every
/// example. Each function returns this replica's part of the global batch's loss. The parts of all
/// replicas add up to that loss (AverageLoss). The returned loss and the losses for the metrics
/// include regularisation.

/// Computes forward with dropout, loss and backward. The caller calls `replica.Apply()`.
double ComputeGradients(
    Replica& replica, const ReplicaBatch& batch, const Loss& loss,
    std::span<Metric* const> metrics);

/// Calls ComputeGradients and Apply. Collective.
double TrainStep(
    Replica& replica, const ReplicaBatch& batch, const Loss& loss,
    std::span<Metric* const> metrics);

/// Computes forward without dropout, and loss.
double TestStep(
    Replica& replica, const ReplicaBatch& batch, const Loss& loss,
    std::span<Metric* const> metrics);

/// Appends the outputs, (examples, outputs), to `outputs`.
void PredictStep(Replica& replica, const ReplicaBatch& batch, std::vector<float>& outputs);

/// Three training loops to copy and change, each in one function. All train the replicas of all
/// ranks together and compute the same. Each updates `metrics` with this rank's examples;
/// SumOverRanks adds those of all ranks. Each returns this rank's part of the sum of the global
/// batches' losses. Trainer::Fit computes the same, with callbacks and validation.

/// A for-each loop over the rest of the epoch.
double ForEachBatch(
    Replica& replica, BatchSource& data, const Loss& loss, std::span<Metric* const> metrics);

/// An iterator and a number of steps, which may span epochs. `*epoch` is the current epoch of
/// `data`. The function increases it.
double TrainSteps(
    Replica& replica, BatchSource& data, uint64_t steps, const Loss& loss,
    std::span<Metric* const> metrics, uint64_t* epoch);

/// A whole epoch in one call.
double TrainEpoch(
    Replica& replica, BatchSource& data, uint64_t epoch, const Loss& loss,
    std::span<Metric* const> metrics);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_TRAIN_STEPS_H_
