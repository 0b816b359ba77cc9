#ifndef DTRUN_MODELS_OPTIM_UPDATE_KERNELS_H_
#define DTRUN_MODELS_OPTIM_UPDATE_KERNELS_H_

#include <cstddef>

namespace dtrun::models {

/// The formulas of sgd.h and adam.h over `count` elements, one pass over memory each.
void Descend(const float* gradient, size_t count, float rate, float* value);
void DescendWithMomentum(
    const float* gradient, size_t count, float rate, float momentum, float* velocity, float* value);

struct AdamFactors {
  float rate = 0;                  ///< with the corrections for the first steps
  float m_share = 0, v_share = 0;  ///< 1 - beta1, 1 - beta2
  float epsilon = 0;
};
void UpdateAdam(
    const float* gradient, size_t count, const AdamFactors& factors, float* m, float* v,
    float* value);

}  // namespace dtrun::models

#endif
