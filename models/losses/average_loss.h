#ifndef DTRUN_MODELS_LOSSES_AVERAGE_LOSS_H_
#define DTRUN_MODELS_LOSSES_AVERAGE_LOSS_H_

#include <cstdint>
#include <span>

namespace dtrun::models {

/// A replica's part of the loss of a global batch:
///   sum over its examples of sample_weights(i) * per_example(i), divided by global_batch
/// where global_batch counts the examples of all replicas together. The parts of all replicas, and
/// so the gradients, are then *added*: each example counts the same, however the batch was shared.
///
///   2 replicas, losses [2, 3] and [4, 5], global batch 4  ->  1.25 and 2.25; together 3.5
///
/// Averaging these parts over the replicas instead (1.75) divides by the replicas a second time.
/// No `sample_weights`: each is 1. Throws Error kInvalidArgument when there is not one per example,
/// or the global batch is smaller than this part of it.
double AverageLoss(
    std::span<const double> per_example, std::span<const float> sample_weights,
    uint64_t global_batch);

/// What Loss::Gradient takes for the gradient of AverageLoss: sample_weights(i) / global_batch.
void LossFactors(
    std::span<const float> sample_weights, uint64_t global_batch, std::span<float> factors);

/// A replica's part of what all replicas have in common, such as the regularisation of weights that
/// are the same everywhere: the parts of all replicas add up to it.
///
///   ScaleRegularization(0.6, 2)  ->  0.3
double ScaleRegularization(double regularization_loss, int replicas);

}  // namespace dtrun::models

#endif
