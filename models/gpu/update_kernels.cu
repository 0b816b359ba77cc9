// The optimizer's step over all parameters at once. It does nothing but move memory: with f32
// state, Adam reads four floats per parameter and writes three and a copy, so a thread takes 32
// bytes of each at a time.

#include "gpu/kernel.h"
#include "models/gpu/device_math.cuh"
#include "models/gpu/update_kernels.h"
#include "models/gpu/update_rate.cuh"

namespace dtrun::models {
namespace {

// Values that somebody multiplies by are copied into the type he computes in; floats are not.
__device__ inline void StoreCopy(const float*, uint64_t, float*) {}
template <typename T>
__device__ inline void StoreCopy(const float* values, uint64_t at, T* copy) {
  Store8(values, copy + at);
}

template <typename T>
__device__ void Adam(const AdamArgs& args) {
  if (args.state->skip != 0) return;
  const float rate = args.state->update_rate, unscale = args.state->unscale;
  for (uint64_t i = gpu::FirstItem(); i < args.count / kVector; i += gpu::ItemStride()) {
    const uint64_t at = i * kVector;
    float values[kVector], gradients[kVector], m[kVector], v[kVector];
    Load8(args.gradients + at, gradients);
    Load8(args.m + at, m);
    Load8(args.v + at, v);
    Load8(args.values + at, values);
    for (int k = 0; k < kVector; ++k) {
      const float g = gradients[k] * unscale;
      m[k] += (g - m[k]) * args.m_share;
      v[k] += (g * g - v[k]) * args.v_share;
      values[k] -= rate * m[k] / (sqrtf(v[k]) + args.epsilon);
    }
    Store8(m, args.m + at);
    Store8(v, args.v + at);
    Store8(values, args.values + at);
    StoreCopy(values, at, static_cast<T*>(args.copy));
  }
}

template <typename T>
__device__ void Sgd(const SgdArgs& args) {
  if (args.state->skip != 0) return;
  const float rate = args.state->update_rate, unscale = args.state->unscale;
  for (uint64_t i = gpu::FirstItem(); i < args.count / kVector; i += gpu::ItemStride()) {
    const uint64_t at = i * kVector;
    float values[kVector], gradients[kVector], velocity[kVector] = {};
    Load8(args.gradients + at, gradients);
    Load8(args.values + at, values);
    if (args.velocity != nullptr) Load8(args.velocity + at, velocity);
    for (int k = 0; k < kVector; ++k) {
      const float step = rate * (gradients[k] * unscale + args.decay * values[k]);
      velocity[k] = args.momentum * velocity[k] - step;
      values[k] += args.nesterov != 0 ? args.momentum * velocity[k] - step : velocity[k];
    }
    if (args.velocity != nullptr) Store8(velocity, args.velocity + at);
    Store8(values, args.values + at);
    StoreCopy(values, at, static_cast<T*>(args.copy));
  }
}

template <typename T>
__device__ void Narrow(const NarrowArgs& args) {
  for (uint64_t i = gpu::FirstItem(); i < args.count / kVector; i += gpu::ItemStride()) {
    float values[kVector];
    Load8(args.values + i * kVector, values);
    Store8(values, static_cast<T*>(args.copy) + i * kVector);
  }
}

// Of a LossScale (models/train/loss_scale.h). All ranks have the same reduced gradients, so all come to the
// same.
__device__ inline void Decide(const CheckGradientsArgs& args, bool finite, StepState& state) {
  state.unscale = 1 / state.scale;
  state.skip = finite ? 0 : 1;
  if (!finite) {
    ++state.skipped_steps;
    state.good_steps = 0;
    if (state.scale > 1) state.scale /= 2;
    return;
  }
  AdvanceUpdate(args.rate, state);
  if (++state.good_steps < args.scale.growth_interval) return;
  state.good_steps = 0;
  if (state.scale < args.scale.largest) state.scale *= 2;
}

}  // namespace

DTRUN_KERNEL(dtrun_check_gradients, CheckGradientsArgs) {
  uint32_t wrong = 0;
  for (uint64_t i = gpu::FirstItem(); i < args.count / kVector; i += gpu::ItemStride()) {
    float gradients[kVector];
    Load8(args.gradients + i * kVector, gradients);
    // Infinity minus itself is NaN, and so is NaN.
    for (int k = 0; k < kVector; ++k) wrong |= gradients[k] - gradients[k] == 0 ? 0u : 1u;
  }
  StepState& state = *args.state;
  if (wrong != 0) atomicOr(&state.not_finite, 1u);
  if (!IsLastBlock(args.counter) || threadIdx.x != 0) return;
  const bool finite = atomicOr(&state.not_finite, 0u) == 0;
  state.not_finite = 0;
  Decide(args, finite, state);
}

DTRUN_KERNEL(dtrun_adam_f32, AdamArgs) { Adam<float>(args); }
DTRUN_KERNEL(dtrun_adam_bf16, AdamArgs) { Adam<__nv_bfloat16>(args); }
DTRUN_KERNEL(dtrun_adam_f16, AdamArgs) { Adam<__half>(args); }
DTRUN_KERNEL(dtrun_sgd_f32, SgdArgs) { Sgd<float>(args); }
DTRUN_KERNEL(dtrun_sgd_bf16, SgdArgs) { Sgd<__nv_bfloat16>(args); }
DTRUN_KERNEL(dtrun_sgd_f16, SgdArgs) { Sgd<__half>(args); }
DTRUN_KERNEL(dtrun_narrow_bf16, NarrowArgs) { Narrow<__nv_bfloat16>(args); }
DTRUN_KERNEL(dtrun_narrow_f16, NarrowArgs) { Narrow<__half>(args); }

}  // namespace dtrun::models
