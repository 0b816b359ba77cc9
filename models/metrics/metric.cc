#include "models/metrics/metric.h"

#include <dtrun/error.h>

#include <algorithm>
#include <iomanip>
#include <limits>
#include <numeric>
#include <sstream>

#include "models/message_text.h"

namespace dtrun::models {

void Metric::Reset() {
  const std::span<double> sums = state();
  std::fill(sums.begin(), sums.end(), 0.0);
}

// Sums in f64: counts are exact below 2^53.
void SumOverRanks(Communicator& communicator, std::span<Metric* const> metrics) {
  std::vector<double> sums = SumsOf(metrics);
  communicator.AllReduce(Buffer(sums.data(), sums.size()));
  SetSums(metrics, sums);
}

std::vector<double> SumsOf(std::span<Metric* const> metrics) {
  std::vector<double> sums;
  for (Metric* metric : metrics) {
    const std::span<double> state = metric->state();
    sums.insert(sums.end(), state.begin(), state.end());
  }
  return sums;
}

void SetSums(std::span<Metric* const> metrics, const std::vector<double>& sums) {
  auto next = sums.begin();
  for (Metric* metric : metrics)
    for (double& sum : metric->state()) sum = next == sums.end() ? 0 : *next++;
}

namespace {

void CheckLabels(const Metric& metric, const MetricInput& input) {
  const std::span<const int32_t> labels = input.targets.labels;
  const bool fits = labels.size() >= input.outputs.examples &&
                    std::all_of(labels.begin(), labels.end(), [&](int32_t label) {
                      return label >= 0 && static_cast<size_t>(label) < input.outputs.width;
                    });
  if (fits) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text(
          metric.name(), ": ", labels.size(), " labels, expected one for each of ",
          input.outputs.examples, " examples, from 0 and below ", input.outputs.width));
}

bool IsLargest(std::span<const float> outputs, size_t label) {
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (k < label ? !(outputs[k] < outputs[label]) : outputs[k] > outputs[label]) return false;
  }
  return outputs[label] == outputs[label];
}

bool IsAmongLargest(std::span<const float> outputs, size_t label, size_t k) {
  const auto at_least_as_large = static_cast<size_t>(std::count_if(
      outputs.begin(), outputs.end(), [&](float output) { return !(output < outputs[label]); }));
  return at_least_as_large <= k;  // counts the label's output too
}

}  // namespace

void SparseCategoricalAccuracy::Update(const MetricInput& input) {
  CheckLabels(*this, input);
  for (size_t i = 0; i < input.outputs.examples; ++i)
    Add(IsLargest(input.outputs.row(i), input.targets.label(i)) ? 1 : 0, input.weight(i));
}

TopK::TopK(int k, std::string name)
    : k_(static_cast<size_t>(k)),
      name_(name.empty() ? Text("top_", k, "_accuracy") : std::move(name)) {
  if (k < 1)
    throw Error(ErrorCode::kInvalidArgument, Text("TopK: k is ", k, ", expected at least 1"));
}

void TopK::Update(const MetricInput& input) {
  CheckLabels(*this, input);
  for (size_t i = 0; i < input.outputs.examples; ++i) {
    const bool found = IsAmongLargest(input.outputs.row(i), input.targets.label(i), k_);
    Add(found ? 1 : 0, input.weight(i));
  }
}

namespace {

size_t CheckedClasses(int classes) {
  if (classes >= 1) return static_cast<size_t>(classes);
  throw Error(
      ErrorCode::kInvalidArgument,
      Text("ConfusionMatrix: ", classes, " classes, expected at least 1"));
}

}  // namespace

ConfusionMatrix::ConfusionMatrix(int classes, std::string name)
    : classes_(CheckedClasses(classes)), counts_(classes_ * classes_), name_(std::move(name)) {}

void ConfusionMatrix::Update(const MetricInput& input) {
  if (input.outputs.width != classes_) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "ConfusionMatrix: ", input.outputs.width, " outputs, expected one for each of ",
            classes_, " classes"));
  }
  CheckLabels(*this, input);
  for (size_t i = 0; i < input.outputs.examples; ++i) {
    const std::span<const float> row = input.outputs.row(i);
    const auto predicted =
        static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
    counts_[input.targets.label(i) * classes_ + predicted] += input.weight(i);
  }
}

double ConfusionMatrix::Result() const {
  double recalls = 0, occurring = 0;
  for (size_t label = 0; label < classes_; ++label) {
    const double* row = counts_.data() + label * classes_;
    const double examples = std::accumulate(row, row + classes_, 0.0);
    if (!(examples > 0)) continue;
    recalls += row[label] / examples;
    ++occurring;
  }
  return occurring > 0 ? recalls / occurring : std::numeric_limits<double>::quiet_NaN();
}

double ConfusionMatrix::At(int label, int predicted) const {
  return counts_.at(static_cast<size_t>(label) * classes_ + static_cast<size_t>(predicted));
}

std::string ConfusionMatrix::ToText() const {
  const double largest = *std::max_element(counts_.begin(), counts_.end());
  const auto width = static_cast<int>(Text(std::max(largest, double(classes_))).size()) + 1;
  std::ostringstream text;
  text << "label\\predicted";
  for (size_t k = 0; k < classes_; ++k) text << std::setw(width) << k;
  text << '\n';
  for (size_t label = 0; label < classes_; ++label) {
    text << std::setw(15) << label;
    for (size_t k = 0; k < classes_; ++k) text << std::setw(width) << counts_[label * classes_ + k];
    text << '\n';
  }
  return text.str();
}

}  // namespace dtrun::models
