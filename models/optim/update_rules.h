#ifndef DTRUN_MODELS_OPTIM_UPDATE_RULES_H_
#define DTRUN_MODELS_OPTIM_UPDATE_RULES_H_

#include <dtrun/optimizer.h>

#include <cstddef>
#include <string>
#include <vector>

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

/// What optimizers and schedules demand of their arguments. Each throws Error kInvalidArgument that
/// names what it found and what it expected.
void CheckF32(const std::vector<Parameter>& parameters);
/// Above 0.
void CheckPositive(const std::string& name, double value);
/// From 0 on.
void CheckNotNegative(const std::string& name, double value);
/// At least 0 and below 1.
void CheckFraction(const std::string& name, double value);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_OPTIM_UPDATE_RULES_H_
