#include <dtrun/error.h>

#include <algorithm>
#include <cmath>

#include "models/losses/loss.h"
#include "models/message_text.h"

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

namespace {

void CheckLabels(const char* loss, const Outputs& outputs, const Targets& targets) {
  if (targets.labels.size() != outputs.examples) {
    throw Error(
        ErrorCode::kInvalidArgument, Text(
                                         loss, ": ", targets.labels.size(), " labels, expected ",
                                         outputs.examples, " as there are examples"));
  }
  const auto wrong = std::find_if(targets.labels.begin(), targets.labels.end(), [&](int32_t label) {
    return label < 0 || static_cast<size_t>(label) >= outputs.width;
  });
  if (wrong == targets.labels.end()) return;
  throw Error(
      ErrorCode::kInvalidArgument, Text(
                                       loss, ": label ", *wrong, ", expected from 0 and below ",
                                       outputs.width, " as the network has that many outputs"));
}

void CheckTargets(const Outputs& outputs, const Targets& targets) {
  const size_t expected = outputs.examples * outputs.width;
  if (targets.values.size() == expected) return;
  if (targets.values.empty() && targets.labels.size() == outputs.examples)
    return CheckLabels("mean_squared_error", outputs, targets);
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

namespace {

constexpr float kLeastProbability = 1e-7f;

// Subtracts the largest logit from all exponents, so that no exponential overflows.
double LossOfLogits(std::span<const float> logits, size_t label) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(logit - largest);
  return std::log(sum) + double{largest} - double{logits[label]};
}

// factor * (softmax - one-hot label)
void GradientOfLogits(std::span<const float> logits, size_t label, float factor, float* gradient) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  float sum = 0;
  for (size_t k = 0; k < logits.size(); ++k) sum += gradient[k] = std::exp(logits[k] - largest);
  for (size_t k = 0; k < logits.size(); ++k)
    gradient[k] = factor * (gradient[k] / sum - (k == label ? 1.0f : 0.0f));
}

}  // namespace

std::string LastLayerOf(const std::string& description) {
  const size_t comma = description.rfind(", ");
  return comma == std::string::npos ? description : description.substr(comma + 2);
}

bool EndsInSoftmax(const std::string& last_layer) {
  const size_t space = last_layer.rfind(' ');
  const std::string last = space == std::string::npos ? last_layer : last_layer.substr(space + 1);
  return last == "softmax";
}

SparseCategoricalCrossentropy SparseCategoricalCrossentropy::For(const std::string& last_layer) {
  return SparseCategoricalCrossentropy(
      EndsInSoftmax(last_layer) ? From::kProbabilities : From::kLogits);
}

void SparseCategoricalCrossentropy::CheckLastLayer(const std::string& last_layer) const {
  if (from_ == From::kLogits && EndsInSoftmax(last_layer)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "sparse_categorical_crossentropy from logits after the last layer (", last_layer,
            "), which puts out probabilities: the loss would apply a second softmax; expected the "
            "loss from probabilities, or a network without the softmax"));
  }
  if (from_ == From::kProbabilities && !EndsInSoftmax(last_layer)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "sparse_categorical_crossentropy from probabilities after the last layer (", last_layer,
            "), which puts out logits; expected the loss from logits, or a softmax at the end of "
            "the network"));
  }
}

void SparseCategoricalCrossentropy::PerExample(
    const Outputs& outputs, const Targets& targets, std::span<double> losses) const {
  CheckLabels("sparse_categorical_crossentropy", outputs, targets);
  for (size_t i = 0; i < outputs.examples; ++i) {
    const std::span<const float> row = outputs.row(i);
    const size_t label = targets.label(i);
    // The comparison is false for a NaN, so that a NaN stays a NaN.
    const float probability = row[label] < kLeastProbability ? kLeastProbability : row[label];
    losses[i] = from_ == From::kLogits ? LossOfLogits(row, label) : -std::log(double{probability});
  }
}

void SparseCategoricalCrossentropy::Gradient(
    const Outputs& outputs, const Targets& targets, std::span<const float> factors,
    float* gradient) const {
  for (size_t i = 0; i < outputs.examples; ++i) {
    const std::span<const float> row = outputs.row(i);
    const size_t label = targets.label(i);
    float* of_example = gradient + i * outputs.width;
    if (from_ == From::kLogits) {
      GradientOfLogits(row, label, factors[i], of_example);
    } else {
      std::fill_n(of_example, outputs.width, 0.0f);
      of_example[label] = -factors[i] / std::max(row[label], kLeastProbability);
    }
  }
}

}  // namespace dtrun::models
