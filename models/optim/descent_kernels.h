#ifndef DTRUN_MODELS_OPTIM_DESCENT_KERNELS_H_
#define DTRUN_MODELS_OPTIM_DESCENT_KERNELS_H_

#include <cstddef>

namespace dtrun::models {

/// Of sgd.h and lars.h: gradient descent along `gradient + decay * value`, over `count` elements in
/// one pass over memory. Every operation is rounded by itself, as in dtrun's own step with momentum
/// (SliceableOptimizer::momentum_rule), whose bits these are.
struct DescentFactors {
  float rate = 0;
  float momentum = 0;
  float decay = 0;
  bool nesterov = false;
};
void Descend(const float* gradient, size_t count, const DescentFactors& factors, float* value);
void DescendWithMomentum(
    const float* gradient, size_t count, const DescentFactors& factors, float* velocity,
    float* value);

}  // namespace dtrun::models

#endif
