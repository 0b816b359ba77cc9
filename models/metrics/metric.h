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

/// The input of the metrics in a step: some of this rank's examples.
struct MetricInput {
  Outputs outputs;
  Targets targets;
  std::span<const double> losses = {};  ///< per example, unscaled
  /// The weight of each example. Empty: each weight is 1.
  std::span<const float> sample_weights = {};

  double weight(size_t example) const {
    return sample_weights.empty() ? 1.0 : double{sample_weights[example]};
  }
};

/// A number computed from many examples. Its state holds only sums and counts, so that the states
/// of the ranks can be added. A mean over all ranks is then one division of sums, not a mean of
/// means. Derive your own metrics from Metric. Not thread-safe.
class Metric {
 public:
  virtual ~Metric() = default;

  /// The name in logs: "accuracy".
  virtual std::string name() const = 0;
  /// Adds some examples.
  virtual void Update(const MetricInput& input) = 0;
  /// The result for all examples since the last Reset. NaN if there are none.
  virtual double Result() const = 0;
  /// All values from which Result is computed, in the same order on all ranks.
  virtual std::span<double> state() = 0;
  /// Forgets all examples.
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

/// Adds up the states of all ranks, for all metrics in one all-reduce. Afterwards, the metrics of
/// every rank give the result for the examples of all ranks. Call it once before Reset: a second
/// call would count the examples of other ranks again. Collective.
void SumOverRanks(Communicator& communicator, std::span<Metric* const> metrics);

/// The states of all metrics, one after the other, to save or to send.
std::vector<double> SumsOf(std::span<Metric* const> metrics);
/// Sets the states to the result of SumsOf of the same metrics. Missing sums become 0.
void SetSums(std::span<Metric* const> metrics, const std::vector<double>& sums);

/// A metric that is a weighted sum divided by the sum of the weights.
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

/// The mean of the per-example losses, or of the numbers passed to `Add`.
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

/// The share of examples for which the label has the largest output. Of equal outputs, the first
/// counts. An output that is NaN is never the largest.
class SparseCategoricalAccuracy : public Ratio {
 public:
  explicit SparseCategoricalAccuracy(std::string name = "accuracy") : name_(std::move(name)) {}
  std::string name() const override { return name_; }
  void Update(const MetricInput& input) override;

 private:
  std::string name_;
};

/// The share of examples for which the label is among the k largest outputs: fewer than k other
/// outputs are at least as large. Keras's SparseTopKCategoricalAccuracy.
class TopK : public Ratio {
 public:
  /// Throws Error kInvalidArgument if k is below 1.
  explicit TopK(int k = 5, std::string name = "");
  std::string name() const override { return name_; }
  void Update(const MetricInput& input) override;

 private:
  size_t k_;
  std::string name_;
};

/// Counts the examples by label and prediction: `At(label, predicted)`. The prediction is the
/// largest output; of equal outputs, the first. Result is the balanced accuracy: the mean, over the
/// classes that occur, of the share of recognised examples. Unlike accuracy, it does not overlook a
/// rare class.
class ConfusionMatrix : public Metric {
 public:
  /// Throws Error kInvalidArgument if there is no class.
  explicit ConfusionMatrix(int classes, std::string name = "balanced_accuracy");

  std::string name() const override { return name_; }
  void Update(const MetricInput& input) override;
  double Result() const override;
  std::span<double> state() override { return counts_; }

  int classes() const { return static_cast<int>(classes_); }
  /// The sum of the weights of the examples of class `label` with the prediction `predicted`.
  double At(int label, int predicted) const;
  /// A table with a row per label and a column per prediction. The columns line up. Ends with a
  /// newline.
  std::string ToText() const;

 private:
  size_t classes_;
  std::vector<double> counts_;  // (label, predicted)
  std::string name_;
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_METRICS_METRIC_H_
