#ifndef DTRUN_MODELS_OPTIM_UPDATE_KERNELS_H_
#define DTRUN_MODELS_OPTIM_UPDATE_KERNELS_H_

#include <cstddef>

namespace dtrun::models {

// The optimizers' formulas over `count` elements, one pass over memory each. What a step has of
// numbers that are the same for all elements is prepared in f64 and rounded once.

/// Of adam.h.
struct AdamFactors {
  float rate = 0;                  ///< with the corrections for the first steps
  float m_share = 0, v_share = 0;  ///< 1 - beta1, 1 - beta2
  float epsilon = 0;
  float decay = 0;  ///< learning rate times weight decay
};
void UpdateAdam(
    const float* gradient, size_t count, const AdamFactors& factors, float* m, float* v,
    float* value);

/// Of lamb.h, whose step needs two passes.
struct LambFactors {
  float m_share = 0, v_share = 0;            ///< 1 - beta1, 1 - beta2
  float m_correction = 0, v_correction = 0;  ///< 1 / (1 - beta^step)
  float epsilon = 0;
  float decay = 0;  ///< weight decay
};
struct SquaredNorms {
  double update = 0, value = 0;
};
/// Renews the moments, and returns the squared norms of the update they make and of the values.
SquaredNorms UpdateLambMoments(
    const float* gradient, size_t count, const LambFactors& factors, float* m, float* v,
    const float* value);
/// value = value - rate * update, which is made again from the moments.
void ApplyLamb(
    const float* m, const float* v, size_t count, const LambFactors& factors, float rate,
    float* value);

}  // namespace dtrun::models

#endif
