#ifndef DTRUN_MODELS_METRICS_CONFUSION_MATRIX_H_
#define DTRUN_MODELS_METRICS_CONFUSION_MATRIX_H_

#include <string>
#include <vector>

#include "models/metrics/metric.h"

namespace dtrun::models {

/// How often each class was taken for each other one: `At(label, predicted)`. The prediction is the
/// largest output, of equal ones the first. Its Result, one number for the logs, is the mean over
/// the classes that occur of the share of their examples that were recognised (balanced accuracy):
/// unlike accuracy, it does not overlook a rare class.
class ConfusionMatrix : public Metric {
 public:
  /// Throws Error kInvalidArgument unless there is at least 1 class.
  explicit ConfusionMatrix(int classes, std::string name = "balanced_accuracy");

  std::string name() const override { return name_; }
  void Update(const MetricInput& input) override;
  double Result() const override;
  std::span<double> state() override { return counts_; }

  int classes() const { return static_cast<int>(classes_); }
  /// Examples (their weights) of class `label` that were taken for `predicted`.
  double At(int label, int predicted) const;
  /// A row per label, a column per prediction, in columns that line up; ends with a new line.
  std::string ToText() const;

 private:
  size_t classes_;
  std::vector<double> counts_;  // (label, predicted)
  std::string name_;
};

}  // namespace dtrun::models

#endif
