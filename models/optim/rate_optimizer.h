#ifndef DTRUN_MODELS_OPTIM_RATE_OPTIMIZER_H_
#define DTRUN_MODELS_OPTIM_RATE_OPTIMIZER_H_

#include <dtrun/optimizer.h>

#include <cstddef>
#include <string>
#include <vector>

namespace dtrun::models {

/// An optimizer whose learning rate may change between steps. Gradients are clipped before it sees
/// them: see max_gradient_norm of DistributedOptions and ShardedOptions.
class RateOptimizer : public virtual Optimizer {
 public:
  /// That of the next step.
  virtual double learning_rate() const = 0;
  /// From the next step on. Throws Error kInvalidArgument unless `rate` is a number from 0 on.
  virtual void set_learning_rate(double rate) = 0;
};

/// The last words of names: "bias" stands for "layer0.conv2d.bias" and for "dense/bias".
using LastWords = std::vector<std::string>;

/// Parameters that are neither decayed nor adapted by layer: biases, and the scale and offset of
/// normalisation. They are few, and their size says nothing about the network's.
inline LastWords BiasesAndNorms() { return {"bias", "gamma", "beta"}; }

/// Whether what follows the last '.' or '/' of `name` is one of `words`.
bool EndsWithOneOf(const std::string& name, const LastWords& words);

/// A number per element of every parameter, zero at first, as optimizers keep them that are not
/// sliceable.
class Moments {
 public:
  explicit Moments(const std::vector<Parameter>& parameters) {
    for (const Parameter& parameter : parameters) values_.emplace_back(parameter.value.count);
  }

  float* of(size_t parameter) { return values_[parameter].data(); }

  /// Appends "<name>/<parameter>" of all parameters.
  void AppendTo(
      std::vector<NamedBuffer>& state, const std::string& name,
      const std::vector<Parameter>& parameters) {
    for (size_t i = 0; i < values_.size(); ++i)
      state.push_back(
          {name + "/" + parameters[i].name, Buffer(values_[i].data(), values_[i].size())});
  }

 private:
  std::vector<std::vector<float>> values_;
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_OPTIM_RATE_OPTIMIZER_H_
