#ifndef DTRUN_MODELS_OPTIM_ADAM_H_
#define DTRUN_MODELS_OPTIM_ADAM_H_

#include <dtrun/sliceable_optimizer.h>

#include <cstdint>
#include <vector>

#include "models/optim/rate_optimizer.h"

namespace dtrun::models {

struct AdamOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-7;
};

struct AdamWOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-7;
  double weight_decay = 0.004;
  LastWords not_decayed = BiasesAndNorms();
};

/// Adam: D. P. Kingma and J. Ba, ICLR 2015. This is the form at the end of section 2, which Keras
/// also uses. In step t = 1, 2, ...:
///   m = m + (gradient - m) * (1 - beta1)
///   v = v + (gradient^2 - v) * (1 - beta2)
///   value = value - learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon)
/// State: "adam.m/<parameter>" and "adam.v/<parameter>" as f32; "adam.step", the number of steps
/// done, one u64.
class Adam : public PlacedOptimizer {
 public:
  /// `parameters` must be f32, in memory of `device`, and outlive the optimizer. Throws Error
  /// kInvalidArgument if a parameter is not f32 or an option is out of range.
  Adam(
      std::vector<Parameter>& parameters, const AdamOptions& options,
      UpdateDevice& device = HostMemory());

  std::vector<Parameter>& parameters() override { return parameters_; }
  std::vector<StateSlot> slots() const override;
  std::vector<NamedBuffer> scalars() override { return {{"adam.step", Buffer(&step_, 1)}}; }
  void BeginStep() override;
  void StepSlice(const ParameterSlice& slice) override;
  double learning_rate() const override { return options_.learning_rate; }
  void set_learning_rate(double rate) override;

 protected:
  Adam(
      std::vector<Parameter>& parameters, const AdamOptions& options, double weight_decay,
      const LastWords& not_decayed, UpdateDevice& device);

 private:
  std::vector<Parameter>& parameters_;
  AdamOptions options_;
  std::vector<double> decay_;  // by parameter
  uint64_t step_ = 0;
  double rate_ = 0;  // of this step, with the corrections
};

/// Adam with decoupled weight decay: I. Loshchilov and F. Hutter, ICLR 2019, algorithm 2. Before
/// Adam's update, decays all parameters, except those with names that end with a word of
/// `not_decayed`:
///   value = value - learning_rate * weight_decay * value
/// The state has the same names as Adam's. Therefore Adam and AdamW can continue from each other's
/// state.
class AdamW : public Adam {
 public:
  AdamW(
      std::vector<Parameter>& parameters, const AdamWOptions& options,
      UpdateDevice& device = HostMemory())
      : Adam(
            parameters, {options.learning_rate, options.beta1, options.beta2, options.epsilon},
            options.weight_decay, options.not_decayed, device) {}
};

}  // namespace dtrun::models

#endif
