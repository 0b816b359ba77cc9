#include "models/losses/mean_squared_error.h"

#include <dtrun/error.h>

#include "models/text.h"

namespace dtrun::models {
namespace {

void CheckTargets(const Outputs& outputs, const Targets& targets) {
  const size_t expected = outputs.examples * outputs.width;
  if (targets.values.size() == expected) return;
  if (targets.values.empty() && targets.labels.size() == outputs.examples) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text(
          "mean_squared_error: ", targets.values.size(), " target values and ",
          targets.labels.size(), " labels, expected ", expected, " values or ", outputs.examples,
          " labels for outputs of ", outputs.examples, "x", outputs.width));
}

float TargetOf(const Targets& targets, size_t example, size_t k, size_t width) {
  if (!targets.values.empty()) return targets.values[example * width + k];
  return targets.label(example) == k ? 1.0f : 0.0f;
}

}  // namespace

void MeanSquaredError::PerExample(
    const Outputs& outputs, const Targets& targets, std::span<double> losses) const {
  CheckTargets(outputs, targets);
  for (size_t i = 0; i < outputs.examples; ++i) {
    double sum = 0;
    for (size_t k = 0; k < outputs.width; ++k) {
      const double error = double{outputs.row(i)[k]} - TargetOf(targets, i, k, outputs.width);
      sum += error * error;
    }
    losses[i] = sum / static_cast<double>(outputs.width);
  }
}

void MeanSquaredError::Gradient(
    const Outputs& outputs, const Targets& targets, std::span<const float> factors,
    float* gradient) const {
  const float scale = 2.0f / static_cast<float>(outputs.width);
  for (size_t i = 0; i < outputs.examples; ++i) {
    for (size_t k = 0; k < outputs.width; ++k) {
      const float error = outputs.row(i)[k] - TargetOf(targets, i, k, outputs.width);
      gradient[i * outputs.width + k] = factors[i] * scale * error;
    }
  }
}

}  // namespace dtrun::models
