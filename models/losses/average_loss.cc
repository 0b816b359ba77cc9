#include "models/losses/average_loss.h"

#include <dtrun/error.h>

#include <algorithm>

#include "models/text.h"

namespace dtrun::models {

double AverageLoss(
    std::span<const double> per_example, std::span<const float> sample_weights,
    uint64_t global_batch) {
  if (!sample_weights.empty() && sample_weights.size() != per_example.size()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "AverageLoss: ", sample_weights.size(), " sample weights, expected ",
            per_example.size(), " as there are losses, or none"));
  }
  if (global_batch == 0 || global_batch < per_example.size()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "AverageLoss: a global batch of ", global_batch, ", expected at least the ",
            std::max<size_t>(per_example.size(), 1), " examples of this replica"));
  }
  double sum = 0;
  for (size_t i = 0; i < per_example.size(); ++i)
    sum += sample_weights.empty() ? per_example[i] : double{sample_weights[i]} * per_example[i];
  return sum / static_cast<double>(global_batch);
}

void LossFactors(
    std::span<const float> sample_weights, uint64_t global_batch, std::span<float> factors) {
  const float factor = 1.0f / static_cast<float>(global_batch);
  for (size_t i = 0; i < factors.size(); ++i)
    factors[i] = sample_weights.empty() ? factor : sample_weights[i] * factor;
}

double ScaleRegularization(double regularization_loss, int replicas) {
  if (replicas < 1) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("ScaleRegularization: ", replicas, " replicas, expected at least 1"));
  }
  return regularization_loss / replicas;
}

}  // namespace dtrun::models
