#ifndef DTRUN_MODELS_METRICS_METRIC_H_
#define DTRUN_MODELS_METRICS_METRIC_H_

#include <dtrun/communicator.h>

#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/losses/loss.h"

namespace dtrun::models {

/// What a step shows to metrics: some of this rank's examples.
struct MetricInput {
  Outputs outputs;
  Targets targets;
  std::span<const double> losses = {};  ///< per example, not scaled
  /// What each example counts for; empty: 1.
  std::span<const float> sample_weights = {};

  double weight(size_t example) const {
    return sample_weights.empty() ? 1.0 : double{sample_weights[example]};
  }
};

/// A number that many examples add up to. All it knows are sums and counts, so that those of other
/// ranks can be added: a mean over all ranks is one division of sums, not a mean of means. Derive
/// from it for your own. Not thread-safe.
class Metric {
 public:
  virtual ~Metric() = default;

  /// What it is called in logs: "accuracy".
  virtual std::string name() const = 0;
  /// Adds some examples.
  virtual void Update(const MetricInput& input) = 0;
  /// Of all examples since the last Reset; NaN of none.
  virtual double Result() const = 0;
  /// Everything that Result is computed from, in an order that is the same on all ranks.
  virtual std::span<double> state() = 0;
  /// Back to no examples.
  void Reset();
};

using MetricList = std::vector<std::unique_ptr<Metric>>;

/// MakeMetrics(SparseCategoricalAccuracy(), TopK(3))
template <typename... Ms>
MetricList MakeMetrics(Ms... metrics) {
  MetricList list;
  (list.push_back(std::make_unique<Ms>(std::move(metrics))), ...);
  return list;
}

/// Adds up the states of all ranks, of all metrics in one all-reduce: afterwards every rank's
/// metrics give the result of all ranks' examples. To be called once before Reset, since another
/// sum would count the other ranks' examples again. Collective.
void SumOverRanks(Communicator& communicator, std::span<Metric* const> metrics);

/// A metric that is a weighted sum, divided by the sum of the weights.
class Ratio : public Metric {
 public:
  double Result() const override {
    return sums_[1] > 0 ? sums_[0] / sums_[1] : std::numeric_limits<double>::quiet_NaN();
  }
  std::span<double> state() override { return sums_; }

  double sum() const { return sums_[0]; }
  double weight() const { return sums_[1]; }

 protected:
  void Add(double value, double weight) {
    sums_[0] += value * weight;
    sums_[1] += weight;
  }

 private:
  double sums_[2] = {0, 0};  // of values times weights, of weights
};

/// The mean of the per-example losses, or of any numbers given to `Add`.
class Mean : public Ratio {
 public:
  explicit Mean(std::string name = "loss") : name_(std::move(name)) {}

  std::string name() const override { return name_; }
  void Update(const MetricInput& input) override {
    for (size_t i = 0; i < input.losses.size(); ++i) Add(input.losses[i], input.weight(i));
  }
  void Add(double value, double weight = 1) { Ratio::Add(value, weight); }

 private:
  std::string name_;
};

/// The share of examples whose label has the largest output; of equal ones the first counts, and an
/// output that is NaN is never the largest.
class SparseCategoricalAccuracy : public Ratio {
 public:
  explicit SparseCategoricalAccuracy(std::string name = "accuracy") : name_(std::move(name)) {}
  std::string name() const override { return name_; }
  void Update(const MetricInput& input) override;

 private:
  std::string name_;
};

/// The share of examples whose label is among the k largest outputs (Keras's
/// SparseTopKCategoricalAccuracy): fewer than k other outputs are at least as large.
class TopK : public Ratio {
 public:
  /// Throws Error kInvalidArgument unless k is at least 1.
  explicit TopK(int k = 5, std::string name = "");
  std::string name() const override { return name_; }
  void Update(const MetricInput& input) override;

 private:
  size_t k_;
  std::string name_;
};

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

#endif  // DTRUN_MODELS_METRICS_METRIC_H_
