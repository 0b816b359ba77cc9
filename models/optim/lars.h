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
  LastWords excluded = BiasesAndNorms();  ///< from weight decay and from the ratio
};

/// Layer-wise adaptive rate scaling for large batches, Y. You, I. Gitman and B. Ginsburg,
/// arXiv:1708.03888, algorithm 1: each parameter moves by a like share of its own norm.
///   ratio = trust_coefficient * |value| / (|gradient| + weight_decay * |value|)
///   v = momentum * v - learning_rate * ratio * (gradient + weight_decay * value)
///   value = value + v              (Nesterov's momentum: as in sgd.h)
/// |x| is the Euclidean norm over the whole parameter. The ratio is 1 where |value| or |gradient|
/// is 0, and of parameters whose names end with a word of `excluded`, which are not decayed either.
/// State: "lars.velocity/<parameter>", the v, as f32.
class Lars : public RateOptimizer, public SliceableOptimizer {
 public:
  /// `parameters` are f32 and outlive it. Throws Error kInvalidArgument when they are not f32, or
  /// an option is out of range.
  Lars(std::vector<Parameter>& parameters, const LarsOptions& options);

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
