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
  double weight_decay = 0;  ///< L2 regularisation: adds weight_decay * value to the gradient
};

/// Stochastic gradient descent with momentum, as in Keras: I. Sutskever et al., "On the importance
/// of initialization and momentum in deep learning", ICML 2013.
///   g = gradient + weight_decay * value
///   v = momentum * v - learning_rate * g
///   value = value + v                                  or, with Nesterov's momentum,
///   value = value + momentum * v - learning_rate * g
/// State: "sgd.velocity/<parameter>", the v, as f32. If momentum is 0, there is no state.
class Sgd : public PlacedOptimizer {
 public:
  /// `parameters` must be f32, in memory of `device`, and outlive the optimizer. Throws Error
  /// kInvalidArgument if a parameter is not f32 or an option is out of range.
  Sgd(std::vector<Parameter>& parameters, const SgdOptions& options,
      UpdateDevice& device = HostMemory());

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
