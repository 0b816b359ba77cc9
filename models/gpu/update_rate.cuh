#ifndef DTRUN_MODELS_GPU_UPDATE_RATE_CUH_
#define DTRUN_MODELS_GPU_UPDATE_RATE_CUH_

#include "gpu/kernel.h"
#include "models/gpu/step_state.h"

namespace dtrun::models {

// One more update, and the rate that it has: Adam::BeginStep of models/optim/adam.h.
__device__ inline void AdvanceUpdate(const RateRule& rule, StepState& state) {
  ++state.updates;
  double rate = static_cast<double>(state.now.rate);
  if (rule.beta2 > 0) {
    const double t = static_cast<double>(state.updates);
    rate *= sqrt(1 - pow(rule.beta2, t)) / (1 - pow(rule.beta1, t));
  }
  state.update_rate = static_cast<float>(rate);
}

}  // namespace dtrun::models

#endif
