#ifndef DTRUN_MODELS_METRICS_MEAN_H_
#define DTRUN_MODELS_METRICS_MEAN_H_

#include <limits>
#include <string>
#include <utility>

#include "models/metrics/metric.h"

namespace dtrun::models {

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

}  // namespace dtrun::models

#endif
