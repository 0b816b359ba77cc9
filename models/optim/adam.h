#ifndef DTRUN_MODELS_OPTIM_ADAM_H_
#define DTRUN_MODELS_OPTIM_ADAM_H_

#include <dtrun/optimizer.h>

#include <cstdint>
#include <vector>

#include "models/optim/learning_rate.h"

namespace dtrun::models {

struct AdamOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-7;
};

/// Adam, D. P. Kingma and J. Ba, ICLR 2015, in the form that closes its section 2, which is also
/// Keras's. In step t = 1, 2, ...:
///   m = m + (gradient - m) * (1 - beta1)
///   v = v + (gradient^2 - v) * (1 - beta2)
///   value = value - learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon)
/// State: "adam.m" and "adam.v", those of all parameters in their order, as f32; "adam.step", the
/// steps done, one u64.
class Adam : public RateOptimizer {
 public:
  /// `parameters` are f32 and outlive it. Throws Error kInvalidArgument when they are not f32, or
  /// an option is out of range.
  Adam(std::vector<Parameter>& parameters, const AdamOptions& options);

  std::vector<Parameter>& parameters() override { return parameters_; }
  std::vector<NamedBuffer> state() override;
  void Step() override;
  double learning_rate() const override { return options_.learning_rate; }
  void set_learning_rate(double rate) override { options_.learning_rate = rate; }

 private:
  std::vector<Parameter>& parameters_;
  AdamOptions options_;
  std::vector<float> m_, v_;
  uint64_t step_ = 0;
};

}  // namespace dtrun::models

#endif
