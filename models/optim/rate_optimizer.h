#ifndef DTRUN_MODELS_OPTIM_RATE_OPTIMIZER_H_
#define DTRUN_MODELS_OPTIM_RATE_OPTIMIZER_H_

#include <dtrun/optimizer.h>
#include <dtrun/sliceable_optimizer.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "models/optim/update_rules.h"

namespace dtrun::models {

/// An optimizer with a learning rate that may change between steps. The optimizer does not clip
/// gradients: see max_gradient_norm of DistributedOptions and ShardedOptions.
class RateOptimizer : public virtual Optimizer {
 public:
  /// The learning rate of the next step.
  virtual double learning_rate() const = 0;
  /// Sets the learning rate from the next step on. Throws Error kInvalidArgument if `rate` is
  /// negative, infinite or NaN.
  virtual void set_learning_rate(double rate) = 0;

  std::vector<double> step_settings() const override { return {learning_rate()}; }
  void set_step_settings(const std::vector<double>& settings) override {
    set_learning_rate(settings.at(0));
  }
};

/// A RateOptimizer that keeps its state beside its parameters, in host memory or on a GPU.
class PlacedOptimizer : public RateOptimizer, public SliceableOptimizer {
 protected:
  explicit PlacedOptimizer(UpdateDevice& device) : device_(device) {}

  UpdateDevice& device() { return device_; }
  Buffer AllocateState(const Parameter& parameter, DType dtype) override {
    return device_.Allocate(parameter.value.count, dtype, state_memory_.emplace_back());
  }

 private:
  UpdateDevice& device_;
  std::deque<std::shared_ptr<void>> state_memory_;
};

/// The last words of parameter names: "bias" matches "layer0.conv2d.bias" and "dense/bias".
using LastWords = std::vector<std::string>;

/// Parameters without weight decay and without a ratio per layer: biases, and the scale and offset
/// of normalisations. They are few, and their size does not indicate the size of the network's
/// weights.
inline LastWords BiasesAndNorms() { return {"bias", "gamma", "beta"}; }

/// True if the part of `name` after the last '.' or '/' is one of `words`.
bool EndsWithOneOf(const std::string& name, const LastWords& words);

/// One number per element of every parameter, initially 0. For optimizers that are not sliceable.
class Moments {
 public:
  Moments(const std::vector<Parameter>& parameters, UpdateDevice& device) {
    for (const Parameter& parameter : parameters)
      values_.push_back(
          device.Allocate(parameter.value.count, DType::kF32, memory_.emplace_back()));
  }

  float* of(size_t parameter) { return static_cast<float*>(values_[parameter].data); }

  /// Appends "<name>/<parameter>" for every parameter.
  void AppendTo(
      std::vector<NamedBuffer>& state, const std::string& name,
      const std::vector<Parameter>& parameters) {
    for (size_t i = 0; i < values_.size(); ++i)
      state.push_back({name + "/" + parameters[i].name, values_[i]});
  }

 private:
  std::deque<std::shared_ptr<void>> memory_;
  std::vector<Buffer> values_;
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_OPTIM_RATE_OPTIMIZER_H_
