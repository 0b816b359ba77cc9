#ifndef DTRUN_MODELS_METRICS_ACCURACY_H_
#define DTRUN_MODELS_METRICS_ACCURACY_H_

#include <string>

#include "models/metrics/mean.h"

namespace dtrun::models {

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

}  // namespace dtrun::models

#endif
