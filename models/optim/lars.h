#ifndef DTRUN_MODELS_OPTIM_LARS_H_
#define DTRUN_MODELS_OPTIM_LARS_H_

#include <dtrun/sliceable_optimizer.h>

#include <vector>

#include "models/optim/rate_optimizer.h"

namespace dtrun::models {

struct LarsOptions {
  double learning_rate = 1;
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 1e-4;
  double trust_coefficient = 1e-3;
  LastWords excluded = BiasesAndNorms();  ///< no weight decay, and ratio 1
};

/// Layer-wise adaptive rate scaling for large batches: Y. You, I. Gitman and B. Ginsburg,
/// arXiv:1708.03888, algorithm 1. The length of the update is proportional to the norm of the
/// parameter.
///   ratio = trust_coefficient * |value| / (|gradient| + weight_decay * |value|)
///   v = momentum * v - learning_rate * ratio * (gradient + weight_decay * value)
///   value = value + v              (Nesterov's momentum: as in sgd.h)
/// |x| is the Euclidean norm over the whole parameter. The ratio is 1 if |value| or |gradient| is
/// 0. If the name of a parameter ends with a word of `excluded`, its ratio is 1 and its weight
/// decay is 0. State: "lars.velocity/<parameter>", the v, as f32.
class Lars : public PlacedOptimizer {
 public:
  /// `parameters` must be f32, in memory of `device`, and outlive the optimizer. Throws Error
  /// kInvalidArgument if a parameter is not f32 or an option is out of range.
  Lars(
      std::vector<Parameter>& parameters, const LarsOptions& options,
      UpdateDevice& device = HostMemory());

  std::vector<Parameter>& parameters() override { return parameters_; }
  std::vector<StateSlot> slots() const override { return {{"lars.velocity", DType::kF32}}; }
  bool needs_norms() const override { return true; }
  void SetNorms(const std::vector<ParameterNorms>& norms) override;
  void StepSlice(const ParameterSlice& slice) override;
  double learning_rate() const override { return options_.learning_rate; }
  void set_learning_rate(double rate) override;

 private:
  std::vector<Parameter>& parameters_;
  LarsOptions options_;
  std::vector<bool> excluded_;  // by parameter
  std::vector<double> ratio_;   // by parameter, of this step
};

}  // namespace dtrun::models

#endif
