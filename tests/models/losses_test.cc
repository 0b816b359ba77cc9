#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "models/losses/loss.h"

namespace dtrun::models {
namespace {

using From = SparseCategoricalCrossentropy::From;

TEST_CASE("the parts of two replicas add up to the loss of the global batch") {
  const std::vector<double> first = {2, 3}, second = {4, 5};
  const double a = AverageLoss(first, {}, 4), b = AverageLoss(second, {}, 4);
  CHECK(a == 1.25);
  CHECK(b == 2.25);
  CHECK(a + b == 3.5);         // the mean of 2, 3, 4 and 5
  CHECK((a + b) / 2 == 1.75);  // wrong: divided by the number of replicas once more
}

TEST_CASE("four replicas that share a batch of 64 divide by 64 and not by 16") {
  std::vector<double> all(64);
  std::iota(all.begin(), all.end(), 1.0);
  double sum = 0, sum_of_means = 0;
  for (size_t replica = 0; replica < 4; ++replica) {
    const std::span<const double> share = std::span<const double>(all).subspan(16 * replica, 16);
    sum += AverageLoss(share, {}, 64);
    sum_of_means += AverageLoss(share, {}, 16);
  }
  CHECK(sum == 32.5);
  CHECK(sum_of_means == 4 * 32.5);  // wrong: a mean in every replica
}

TEST_CASE("an uneven share counts its examples like the other shares") {
  const std::vector<double> four = {1, 1, 1, 1}, two = {4, 4};
  CHECK(AverageLoss(four, {}, 6) + AverageLoss(two, {}, 6) == Approx(2));
  CHECK(AverageLoss({}, {}, 6) == 0);
}

TEST_CASE("sample weights scale the losses and the gradient alike") {
  const std::vector<double> losses = {2, 3};
  const std::vector<float> weights = {0.5f, 2};
  CHECK(AverageLoss(losses, weights, 4) == 1.75);
  std::vector<float> factors(2);
  LossFactors(weights, 4, factors);
  CHECK(factors == std::vector<float>{0.125f, 0.5f});
  LossFactors({}, 4, factors);
  CHECK(factors == std::vector<float>{0.25f, 0.25f});
}

TEST_CASE("an impossible global batch and mismatched sample weights are refused") {
  const std::vector<double> losses = {2, 3};
  const std::vector<float> weights = {1, 1, 1};
  CHECK_THROWS_WITH(
      AverageLoss(losses, {}, 1),
      "AverageLoss: a global batch of 1, expected at least the 2 examples of this replica");
  CHECK_THROWS_WITH(
      AverageLoss(losses, weights, 2),
      "AverageLoss: 3 sample weights, expected 2 as there are losses, or none");
}

TEST_CASE("the regularization of weights that replicas share is added once") {
  CHECK(4 * ScaleRegularization(0.5, 4) == 0.5);
  CHECK_THROWS_WITH(
      ScaleRegularization(0.5, 0), "ScaleRegularization: 0 replicas, expected at least 1");
}

// Outputs and labels of two examples, for finite differences in float64.
const std::vector<float> kOutputs = {1.5f, -0.5f, 0.25f, 0.1f, 2.0f, -1.0f};
const std::vector<int32_t> kLabels = {2, 0};

void CheckGradient(const Loss& loss, const std::vector<float>& at, const Targets& targets) {
  const std::vector<float> factors = {0.25f, 0.5f};
  std::vector<float> gradient(at.size());
  loss.Gradient({at.data(), 2, 3}, targets, factors, gradient.data());
  for (size_t i = 0; i < at.size(); ++i) {
    const auto loss_at = [&](float value) {
      std::vector<float> moved = at;
      moved[i] = value;
      std::vector<double> losses(2);
      loss.PerExample({moved.data(), 2, 3}, targets, losses);
      return losses[i / 3];
    };
    const float high = at[i] + 1e-2f, low = at[i] - 1e-2f;
    const double slope = (loss_at(high) - loss_at(low)) / (double{high} - double{low});
    INFO(loss.name() << " output " << i);
    CHECK(double{gradient[i]} == Approx(slope * double{factors[i / 3]}).margin(1e-4));
  }
}

TEST_CASE("cross-entropy from logits equals cross-entropy of their softmax") {
  const SparseCategoricalCrossentropy loss;
  std::vector<double> losses(2);
  loss.PerExample({kOutputs.data(), 2, 3}, {.labels = kLabels}, losses);
  const double sum = std::exp(1.5) + std::exp(-0.5) + std::exp(0.25);
  CHECK(losses[0] == Approx(std::log(sum) - 0.25));
  CheckGradient(loss, kOutputs, {.labels = kLabels});
}

TEST_CASE("cross-entropy of large logits does not overflow and NaN stays NaN") {
  const std::vector<float> outputs = {1000, -1000, std::numeric_limits<float>::quiet_NaN(), 0};
  const std::vector<int32_t> labels = {1, 1};
  std::vector<double> losses(2);
  SparseCategoricalCrossentropy().PerExample({outputs.data(), 2, 2}, {.labels = labels}, losses);
  CHECK(losses[0] == Approx(2000));
  CHECK(std::isnan(losses[1]));
}

TEST_CASE("cross-entropy from probabilities equals cross-entropy from their logits") {
  std::vector<float> probabilities;
  for (size_t i = 0; i < 2; ++i) {
    double sum = 0;
    for (size_t k = 0; k < 3; ++k) sum += std::exp(double{kOutputs[3 * i + k]});
    for (size_t k = 0; k < 3; ++k)
      probabilities.push_back(float(std::exp(double{kOutputs[3 * i + k]}) / sum));
  }
  const SparseCategoricalCrossentropy from_logits, from_probabilities(From::kProbabilities);
  std::vector<double> expected(2), losses(2);
  from_logits.PerExample({kOutputs.data(), 2, 3}, {.labels = kLabels}, expected);
  from_probabilities.PerExample({probabilities.data(), 2, 3}, {.labels = kLabels}, losses);
  CHECK(losses[0] == Approx(expected[0]));
  CHECK(losses[1] == Approx(expected[1]));
  const std::vector<float> larger = {0.2f, 0.3f, 0.5f, 0.6f, 0.3f, 0.1f};
  std::vector<float> gradient(6);
  from_probabilities.Gradient(
      {larger.data(), 2, 3}, {.labels = kLabels}, std::vector<float>{1, 0.5f}, gradient.data());
  CHECK(gradient == std::vector<float>{0, 0, -2, -0.5f / 0.6f, 0, 0});
}

TEST_CASE("a loss that does not match the network's last layer is refused") {
  const SparseCategoricalCrossentropy from_logits, from_probabilities(From::kProbabilities);
  from_logits.CheckLastLayer(LastLayerOf("flatten, dense 128 relu, dense 10"));
  from_probabilities.CheckLastLayer(LastLayerOf("dense 10, softmax"));
  from_probabilities.CheckLastLayer("dense 10 softmax");
  CHECK_THROWS_WITH(
      from_logits.CheckLastLayer(LastLayerOf("dense 10, softmax")),
      "sparse_categorical_crossentropy from logits after the last layer (softmax), which puts out "
      "probabilities: the loss would apply a second softmax; expected the loss from probabilities, "
      "or a network without the softmax");
  CHECK_THROWS_WITH(
      from_probabilities.CheckLastLayer("dense 10"),
      "sparse_categorical_crossentropy from probabilities after the last layer (dense 10), which "
      "puts out logits; expected the loss from logits, or a softmax at the end of the network");
  CHECK(SparseCategoricalCrossentropy::For("softmax").from() == From::kProbabilities);
  CHECK(SparseCategoricalCrossentropy::For("dense 10 relu").from() == From::kLogits);
}

TEST_CASE("a label beyond the network's outputs is refused") {
  const std::vector<int32_t> labels = {0, 3};
  std::vector<double> losses(2);
  CHECK_THROWS_WITH(
      SparseCategoricalCrossentropy().PerExample(
          {kOutputs.data(), 2, 3}, {.labels = labels}, losses),
      "sparse_categorical_crossentropy: label 3, expected from 0 and below 3 as the network has "
      "that many outputs");
  CHECK_THROWS_WITH(
      MeanSquaredError().PerExample({kOutputs.data(), 2, 3}, {.labels = labels}, losses),
      "mean_squared_error: label 3, expected from 0 and below 3 as the network has that many "
      "outputs");
}

TEST_CASE("the mean squared error is per example and against values or labels") {
  const MeanSquaredError loss;
  const std::vector<float> outputs = {1, 2, 3, 0, 0, 2}, values = {1, 0, 3, 3, 0, 0};
  std::vector<double> losses(2);
  loss.PerExample({outputs.data(), 2, 3}, {.values = values}, losses);
  CHECK(losses[0] == Approx(4.0 / 3));
  CHECK(losses[1] == Approx(13.0 / 3));
  loss.PerExample({outputs.data(), 2, 3}, {.labels = kLabels}, losses);
  CHECK(losses[0] == Approx(9.0 / 3));
  CHECK(losses[1] == Approx(5.0 / 3));
  CheckGradient(loss, outputs, {.values = values});
  CheckGradient(loss, outputs, {.labels = kLabels});
  CHECK_THROWS_WITH(
      loss.PerExample({outputs.data(), 2, 3}, {.values = std::span(values).first(4)}, losses),
      "mean_squared_error: 4 target values and 0 labels, expected 6 values or 2 labels for outputs "
      "of 2x3");
}

}  // namespace
}  // namespace dtrun::models
