#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "models/metrics/metric.h"

namespace dtrun::models {
namespace {

// Outputs, labels and losses of four examples with three classes.
const std::vector<float> kFourOutputs = {5, 1, 2, 0, 3, 9, 1, 1, 0, 2, 4, 3};
const std::vector<int32_t> kFourLabels = {0, 1, 0, 2};
const std::vector<double> kLosses = {1, 2, 3, 6};

MetricInput Input(size_t first, size_t count) {
  return {
      {kFourOutputs.data() + 3 * first, count, 3},
      {.labels = std::span(kFourLabels).subspan(first, count)},
      std::span(kLosses).subspan(first, count)};
}

TEST_CASE("a metric adds up over updates and starts again after a reset") {
  SparseCategoricalAccuracy accuracy;
  CHECK(std::isnan(accuracy.Result()));
  accuracy.Update(Input(0, 3));
  accuracy.Update(Input(3, 1));
  CHECK(accuracy.Result() == 0.5);  // a tie counts for the first output
  accuracy.Reset();
  accuracy.Update(Input(1, 1));
  CHECK(accuracy.Result() == 0);
}

TEST_CASE("a mean is over examples and not over updates") {
  Mean loss;
  loss.Update(Input(0, 3));
  loss.Update(Input(3, 1));
  CHECK(loss.Result() == 3);
  Mean weighted("weighted");
  MetricInput input = Input(0, 2);
  const std::vector<float> weights = {3, 1};
  input.sample_weights = weights;
  weighted.Update(input);
  CHECK(weighted.Result() == 1.25);
  CHECK(weighted.name() == "weighted");
}

TEST_CASE("TopK looks for the label among the k largest outputs") {
  TopK second(2);
  second.Update(Input(0, 4));
  CHECK(second.Result() == 1);
  TopK first(1);
  first.Update(Input(0, 4));
  CHECK(first.Result() == 0.25);  // a tie for the first place does not count
  CHECK(second.name() == "top_2_accuracy");
  CHECK_THROWS_WITH(TopK(0), "TopK: k is 0, expected at least 1");
}

TEST_CASE("a NaN output is never a correct prediction") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> outputs = {nan, nan, nan, 1, nan, 0};
  const std::vector<int32_t> labels = {0, 0};
  SparseCategoricalAccuracy accuracy;
  accuracy.Update({{outputs.data(), 2, 3}, {.labels = labels}});
  CHECK(accuracy.Result() == 0.5);
}

TEST_CASE("a confusion matrix counts labels against predictions") {
  ConfusionMatrix matrix(3);
  matrix.Update(Input(0, 4));
  CHECK(matrix.At(0, 0) == 2);
  CHECK(matrix.At(1, 2) == 1);
  CHECK(matrix.At(2, 1) == 1);
  CHECK(matrix.At(1, 1) == 0);
  CHECK(matrix.Result() == Approx(1.0 / 3));  // class 0 is always correct, the other classes never
  CHECK(
      matrix.ToText() ==
      "label\\predicted 0 1 2\n"
      "              0 2 0 0\n"
      "              1 0 0 1\n"
      "              2 0 1 0\n");
  const std::vector<float> four(4);
  CHECK_THROWS_WITH(
      matrix.Update({{four.data(), 1, 4}, {.labels = std::span(kFourLabels).first(1)}}),
      "ConfusionMatrix: 4 outputs, expected one for each of 3 classes");
}

TEST_CASE("a metric refuses labels that are no output of the network") {
  const std::vector<float> outputs(6);
  const std::vector<int32_t> wrong = {0, 3}, negative = {-1, 2}, few = {1};
  for (const auto& metric : MakeMetrics(SparseCategoricalAccuracy(), TopK(2), ConfusionMatrix(3)))
    for (const auto& labels : {wrong, negative, few})
      CHECK_THROWS_WITH(
          metric->Update({{outputs.data(), 2, 3}, {.labels = labels}}),
          metric->name() + ": " + std::to_string(labels.size()) +
              " labels, expected one for each of 2 examples, from 0 and below 3");
}

TEST_CASE("MakeMetrics makes a list of metrics") {
  const MetricList list = MakeMetrics(SparseCategoricalAccuracy(), TopK(3), ConfusionMatrix(10));
  CHECK(list[1]->name() == "top_3_accuracy");
  CHECK(list[2]->state().size() == 100);
}

}  // namespace
}  // namespace dtrun::models
