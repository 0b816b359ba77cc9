#ifndef DTRUN_MODELS_METRICS_METRIC_H_
#define DTRUN_MODELS_METRICS_METRIC_H_

#include <dtrun/communicator.h>

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

}  // namespace dtrun::models

#endif
