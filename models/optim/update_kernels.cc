#include "models/optim/update_kernels.h"

#include <cmath>

#include "models/function_clones.h"

namespace dtrun::models {

DTRUN_KERNEL void Descend(
    const float* __restrict gradient, size_t count, float rate, float* __restrict value) {
  for (size_t i = 0; i < count; ++i) value[i] -= rate * gradient[i];
}

DTRUN_KERNEL void DescendWithMomentum(
    const float* __restrict gradient, size_t count, float rate, float momentum,
    float* __restrict velocity, float* __restrict value) {
  for (size_t i = 0; i < count; ++i) {
    velocity[i] = momentum * velocity[i] - rate * gradient[i];
    value[i] += velocity[i];
  }
}

DTRUN_KERNEL void UpdateAdam(
    const float* __restrict gradient, size_t count, const AdamFactors& factors, float* __restrict m,
    float* __restrict v, float* __restrict value) {
  const AdamFactors f = factors;
  for (size_t i = 0; i < count; ++i) {
    const float g = gradient[i];
    m[i] += (g - m[i]) * f.m_share;
    v[i] += (g * g - v[i]) * f.v_share;
    value[i] -= f.rate * m[i] / (std::sqrt(v[i]) + f.epsilon);
  }
}

}  // namespace dtrun::models
