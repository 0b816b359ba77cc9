#ifndef DTRUN_MODELS_LOOPS_LOOPS_H_
#define DTRUN_MODELS_LOOPS_LOOPS_H_

#include <span>

#include "models/losses/loss.h"
#include "models/metrics/metric.h"
#include "models/train/batch.h"
#include "models/train/replica.h"

namespace dtrun::models {

/// Three training loops to copy and change, each one function in a file of its own. All train the
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

#endif
