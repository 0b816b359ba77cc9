#ifndef DTRUN_MODELS_OPTIM_LAMB_H_
#define DTRUN_MODELS_OPTIM_LAMB_H_

#include <cstdint>
#include <vector>

#include "models/optim/rate_optimizer.h"

namespace dtrun::models {

struct LambOptions {
  double learning_rate = 1e-2;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-6;
  double weight_decay = 0.01;
  LastWords excluded = BiasesAndNorms();  ///< no weight decay, and ratio 1
};

/// Layer-wise adaptive moments for large batches: Y. You et al., ICLR 2020 (arXiv:1904.00962),
/// algorithm 2. The direction is Adam's. The length of the update is proportional to the norm of
/// the parameter. In step t = 1, 2, ...:
///   m = m + (gradient - m) * (1 - beta1)
///   v = v + (gradient^2 - v) * (1 - beta2)
///   update = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay * value
///   value = value - learning_rate * |value| / |update| * update
/// |x| is the Euclidean norm over the whole parameter. The ratio |value| / |update| is 1 if one of
/// the norms is 0. If the name of a parameter ends with a word of `excluded`, its ratio is 1 and
/// its weight decay is 0. The norm needs the whole update before the first value changes. Therefore
/// Lamb is not a SliceableOptimizer. State: "lamb.m/<parameter>" and "lamb.v/<parameter>" as f32;
/// "lamb.step", the number of steps done, one u64.
class Lamb : public RateOptimizer {
 public:
  /// `parameters` must be f32, in memory of `device`, and outlive the optimizer. Throws Error
  /// kInvalidArgument if a parameter is not f32 or an option is out of range.
  Lamb(
      std::vector<Parameter>& parameters, const LambOptions& options,
      UpdateDevice& device = HostMemory());

  std::vector<Parameter>& parameters() override { return parameters_; }
  std::vector<NamedBuffer> state() override;
  void Step() override;
  double learning_rate() const override { return options_.learning_rate; }
  void set_learning_rate(double rate) override;

 private:
  std::vector<Parameter>& parameters_;
  LambOptions options_;
  UpdateDevice& device_;
  std::vector<bool> excluded_;  // by parameter
  Moments m_, v_;
  uint64_t step_ = 0;
};

}  // namespace dtrun::models

#endif
