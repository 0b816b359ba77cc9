#ifndef DTRUN_MODELS_OPTIM_SGD_H_
#define DTRUN_MODELS_OPTIM_SGD_H_

#include <dtrun/optimizer.h>

#include <vector>

#include "models/optim/learning_rate.h"

namespace dtrun::models {

struct SgdOptions {
  double learning_rate = 1e-2;
  double momentum = 0;  ///< 0: plain gradient descent, without state
};

/// Stochastic gradient descent with momentum, as Keras's SGD has it (I. Sutskever et al., ICML
/// 2013):
///   v = momentum * v - learning_rate * gradient
///   value = value + v
/// State: "sgd.velocity", the v of all parameters in their order, as f32, when momentum is not 0.
class Sgd : public RateOptimizer {
 public:
  /// `parameters` are f32 and outlive it. Throws Error kInvalidArgument when they are not f32, or
  /// an option is out of range.
  Sgd(std::vector<Parameter>& parameters, const SgdOptions& options);

  std::vector<Parameter>& parameters() override { return parameters_; }
  std::vector<NamedBuffer> state() override;
  void Step() override;
  double learning_rate() const override { return options_.learning_rate; }
  void set_learning_rate(double rate) override { options_.learning_rate = rate; }

 private:
  std::vector<Parameter>& parameters_;
  SgdOptions options_;
  std::vector<float> velocity_;
};

}  // namespace dtrun::models

#endif
