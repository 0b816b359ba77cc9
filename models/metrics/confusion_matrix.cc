#include "models/metrics/confusion_matrix.h"

#include <dtrun/error.h>

#include <algorithm>
#include <iomanip>
#include <limits>
#include <numeric>
#include <sstream>

#include "models/text.h"

namespace dtrun::models {
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
