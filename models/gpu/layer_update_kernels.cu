// The optimizers' updates over flat arrays, with the operations of models/optim/update_rules.cc in
// their order. The compiler joins a product and a sum into one operation, which rounds only once.
// __fmul_rn prevents this in the descent, because the CPU rounds each of its operations.

#include "gpu/kernel.h"
#include "models/gpu/layer_args.h"
#include "models/gpu/layer_math.cuh"

namespace dtrun::models {
namespace {

// The first and second moment of Adam and Lamb.
__device__ inline void RenewMoments(float g, float m_share, float v_share, float& m, float& v) {
  m += (g - m) * m_share;
  v += (g * g - v) * v_share;
}

__device__ inline float LambUpdate(float m, float v, float value, const LayerLambRule& f) {
  return m * f.m_correction / (sqrtf(v * f.v_correction) + f.epsilon) + f.decay * value;
}

// The step along `gradient + decay * value`.
__device__ inline float Change(const LayerDescentArgs& args, uint64_t i) {
  return __fmul_rn(args.rate, args.gradients[i] + __fmul_rn(args.decay, args.values[i]));
}

__device__ inline double Square(float value) {
  return static_cast<double>(value) * static_cast<double>(value);
}

}  // namespace

DTRUN_KERNEL(dtrun_layer_axpy, LayerAxpyArgs) {
  ForEachOfArray(args.count, [&](uint64_t i) { args.to[i] += args.factor * args.from[i]; });
}

DTRUN_KERNEL(dtrun_layer_adam, LayerAdamArgs) {
  ForEachOfArray(args.count, [&](uint64_t i) {
    float &m = args.m[i], &v = args.v[i], &value = args.values[i];
    RenewMoments(args.gradients[i], args.m_share, args.v_share, m, v);
    value -= args.rate * m / (sqrtf(v) + args.epsilon) + args.decay * value;
  });
}

DTRUN_KERNEL(dtrun_layer_descend, LayerDescentArgs) {
  ForEachOfArray(args.count, [&](uint64_t i) { args.values[i] -= Change(args, i); });
}

DTRUN_KERNEL(dtrun_layer_descend_with_momentum, LayerDescentArgs) {
  ForEachOfArray(args.count, [&](uint64_t i) {
    const float change = Change(args, i);
    const float velocity = __fmul_rn(args.momentum, args.velocity[i]) - change;
    args.velocity[i] = velocity;
    args.values[i] += args.nesterov != 0 ? __fmul_rn(args.momentum, velocity) - change : velocity;
  });
}

DTRUN_KERNEL(dtrun_layer_lamb_moments, LayerLambMomentsArgs) {
  double sums[2] = {};
  ForEachOfArray(args.count, [&](uint64_t i) {
    float &m = args.m[i], &v = args.v[i];
    RenewMoments(args.gradients[i], args.rule.m_share, args.rule.v_share, m, v);
    const float value = args.values[i];
    sums[0] += Square(LambUpdate(m, v, value, args.rule));
    sums[1] += Square(value);
  });
  SumGrid<2>(sums, args.partials, args.counters, [&](const double* total) {
    args.squares[0] = total[0];
    args.squares[1] = total[1];
  });
}

DTRUN_KERNEL(dtrun_layer_lamb_apply, LayerLambApplyArgs) {
  double ratio = 1;
  if (args.squares != nullptr && args.squares[0] > 0 && args.squares[1] > 0)
    ratio = sqrt(args.squares[1] / args.squares[0]);
  const auto rate = static_cast<float>(args.learning_rate * ratio);
  ForEachOfArray(args.count, [&](uint64_t i) {
    float& value = args.values[i];
    value -= rate * LambUpdate(args.m[i], args.v[i], value, args.rule);
  });
}

}  // namespace dtrun::models
