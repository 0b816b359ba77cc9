// The optimizer's step over all parameters, in one pass. Its cost is memory traffic: with f32
// state, Adam reads four floats per parameter, and writes three floats and a copy. A thread takes
// four values of each array at a time. These 16 bytes are adjacent to the 16 bytes of the next
// thread, so a warp accesses whole sectors. Loads and stores are streaming (__ldcs, __stcs). Before
// the next step reads this data again, that step's activations have gone through the caches. So
// this data leaves the caches to data that is used sooner.

#include "gpu/kernel.h"
#include "models/gpu/device_math.cuh"
#include "models/gpu/kernel_args.h"

namespace dtrun::models {
namespace {

constexpr int kQuad = 4;

__device__ inline void LoadQuad(const float* from, float* values) {
  const float4 quad = __ldcs(reinterpret_cast<const float4*>(from));
  values[0] = quad.x, values[1] = quad.y, values[2] = quad.z, values[3] = quad.w;
}

__device__ inline void StoreQuad(const float* values, float* to) {
  __stcs(reinterpret_cast<float4*>(to), float4{values[0], values[1], values[2], values[3]});
}

template <typename T>
struct alignas(8) Four {
  T values[kQuad];
};

// Writes the copy in the type that the next step computes with. The next step reads the copy soon,
// so these stores are not streaming. In f32, there is no copy.
__device__ inline void StoreCopy(const float*, uint64_t, float*) {}
template <typename T>
__device__ inline void StoreCopy(const float* values, uint64_t at, T* copy) {
  Four<T> four;
  for (int k = 0; k < kQuad; ++k) FromFloat(values[k], &four.values[k]);
  *reinterpret_cast<Four<T>*>(copy + at) = four;
}

template <typename T>
__device__ void Adam(const AdamArgs& args) {
  if (args.state->skip != 0) return;
  const float rate = args.state->update_rate, unscale = args.state->unscale;
  for (uint64_t i = gpu::FirstItem(); i < args.count / kQuad; i += gpu::ItemStride()) {
    const uint64_t at = i * kQuad;
    float values[kQuad], gradients[kQuad], m[kQuad], v[kQuad];
    LoadQuad(args.gradients + at, gradients);
    LoadQuad(args.m + at, m);
    LoadQuad(args.v + at, v);
    LoadQuad(args.values + at, values);
    for (int k = 0; k < kQuad; ++k) {
      const float g = gradients[k] * unscale;
      m[k] += (g - m[k]) * args.m_share;
      v[k] += (g * g - v[k]) * args.v_share;
      values[k] -= rate * m[k] / (sqrtf(v[k]) + args.epsilon);
    }
    StoreQuad(m, args.m + at);
    StoreQuad(v, args.v + at);
    StoreQuad(values, args.values + at);
    StoreCopy(values, at, static_cast<T*>(args.copy));
  }
}

template <typename T>
__device__ void Sgd(const SgdArgs& args) {
  if (args.state->skip != 0) return;
  const float rate = args.state->update_rate, unscale = args.state->unscale;
  for (uint64_t i = gpu::FirstItem(); i < args.count / kQuad; i += gpu::ItemStride()) {
    const uint64_t at = i * kQuad;
    float values[kQuad], gradients[kQuad], velocity[kQuad] = {};
    LoadQuad(args.gradients + at, gradients);
    LoadQuad(args.values + at, values);
    if (args.velocity != nullptr) LoadQuad(args.velocity + at, velocity);
    for (int k = 0; k < kQuad; ++k) {
      const float step = rate * (gradients[k] * unscale + args.decay * values[k]);
      velocity[k] = args.momentum * velocity[k] - step;
      values[k] += args.nesterov != 0 ? args.momentum * velocity[k] - step : velocity[k];
    }
    if (args.velocity != nullptr) StoreQuad(velocity, args.velocity + at);
    StoreQuad(values, args.values + at);
    StoreCopy(values, at, static_cast<T*>(args.copy));
  }
}

template <typename T>
__device__ void Narrow(const NarrowArgs& args) {
  for (uint64_t i = gpu::FirstItem(); i < args.count / kQuad; i += gpu::ItemStride()) {
    float values[kQuad];
    LoadQuad(args.values + i * kQuad, values);
    StoreCopy(values, i * kQuad, static_cast<T*>(args.copy));
  }
}

// The rule of LossScale (dtrun/distributed_optimizer.h). All ranks have the same reduced gradients, so all
// ranks decide the same.
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
  for (uint64_t i = gpu::FirstItem(); i < args.count / kQuad; i += gpu::ItemStride()) {
    float gradients[kQuad];
    LoadQuad(args.gradients + i * kQuad, gradients);
    // x - x is 0 if x is finite. It is NaN if x is infinity or NaN.
    for (int k = 0; k < kQuad; ++k) wrong |= gradients[k] - gradients[k] == 0 ? 0u : 1u;
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
