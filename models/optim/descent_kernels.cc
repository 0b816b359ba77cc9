#include "models/function_clones.h"
#include "models/optim/update_rules.h"

namespace dtrun::models {

DTRUN_KERNEL void Descend(
    const float* __restrict gradient, size_t count, const DescentFactors& factors,
    float* __restrict value) {
  const DescentFactors f = factors;
  for (size_t i = 0; i < count; ++i) value[i] -= f.rate * (gradient[i] + f.decay * value[i]);
}

DTRUN_KERNEL void DescendWithMomentum(
    const float* __restrict gradient, size_t count, const DescentFactors& factors,
    float* __restrict velocity, float* __restrict value) {
  const DescentFactors f = factors;
  if (f.nesterov) {
    for (size_t i = 0; i < count; ++i) {
      const float change = f.rate * (gradient[i] + f.decay * value[i]);
      velocity[i] = f.momentum * velocity[i] - change;
      value[i] += f.momentum * velocity[i] - change;
    }
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    velocity[i] = f.momentum * velocity[i] - f.rate * (gradient[i] + f.decay * value[i]);
    value[i] += velocity[i];
  }
}

}  // namespace dtrun::models
