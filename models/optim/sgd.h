#ifndef DTRUN_MODELS_OPTIM_SGD_H_
#define DTRUN_MODELS_OPTIM_SGD_H_

#include <dtrun/sliceable_optimizer.h>

#include <optional>
#include <vector>

#include "models/optim/rate_optimizer.h"

namespace dtrun::models {

struct SgdOptions {
  double learning_rate = 1e-2;
  double momentum = 0;  ///< 0: plain gradient descent, without state
  bool nesterov = false;
  double weight_decay = 0;  ///< L2 regularisation: what is added to the gradient, times the value
};

/// Stochastic gradient descent with momentum, as Keras's SGD has it (I. Sutskever et al., "On the
/// importance of initialization and momentum in deep learning", ICML 2013):
///   g = gradient + weight_decay * value
///   v = momentum * v - learning_rate * g
///   value = value + v                                  or, with Nesterov's momentum,
///   value = value + momentum * v - learning_rate * g
/// State, when momentum is not 0: "sgd.velocity/<parameter>", the v, as f32.
class Sgd : public RateOptimizer, public SliceableOptimizer {
 public:
  /// `parameters` are f32 and outlive it. Throws Error kInvalidArgument when they are not f32, or
  /// an option is out of range.
  Sgd(std::vector<Parameter>& parameters, const SgdOptions& options);

  std::vector<Parameter>& parameters() override { return parameters_; }
  std::vector<StateSlot> slots() const override;
  void StepSlice(const ParameterSlice& slice) override;
  std::optional<MomentumRule> momentum_rule() const override;
  double learning_rate() const override { return options_.learning_rate; }
  void set_learning_rate(double rate) override;

 private:
  std::vector<Parameter>& parameters_;
  SgdOptions options_;
};

}  // namespace dtrun::models

#endif
