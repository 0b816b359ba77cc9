#ifndef DTRUN_MODELS_OPTIM_LEARNING_RATE_H_
#define DTRUN_MODELS_OPTIM_LEARNING_RATE_H_

#include <dtrun/optimizer.h>

#include <cstdint>

namespace dtrun::models {

/// An optimizer whose learning rate may change between steps.
class RateOptimizer : public Optimizer {
 public:
  /// That of the next step.
  virtual double learning_rate() const = 0;
  /// From the next step on. `rate` > 0.
  virtual void set_learning_rate(double rate) = 0;
};

/// The learning rate of step `step` (from 0) of `steps`: constant, then over the last `cooldown` (a
/// fraction) of the steps down to almost 0 in a straight line. Training at a constant rate ends
/// wherever its noise has just thrown it; the cooldown lets it settle. A. Haegele et al., "Scaling
/// Laws and Compute-Optimal Training Beyond Fixed Training Durations", NeurIPS 2024.
///   base 1, 8 steps, cooldown 0.5  ->  1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2
double LearningRateAt(double base, uint64_t step, uint64_t steps, double cooldown);

}  // namespace dtrun::models

#endif
