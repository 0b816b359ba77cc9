#ifndef DTRUN_MODELS_OPTIM_RATE_OPTIMIZER_H_
#define DTRUN_MODELS_OPTIM_RATE_OPTIMIZER_H_

#include <dtrun/optimizer.h>

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

}  // namespace dtrun::models

#endif
