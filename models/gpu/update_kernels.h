#ifndef DTRUN_MODELS_GPU_UPDATE_KERNELS_H_
#define DTRUN_MODELS_GPU_UPDATE_KERNELS_H_

#include <cstdint>

#include "models/gpu/step_state.h"

namespace dtrun::models {

// All parameters are one flat block of floats, and so are their gradients and what an optimizer
// keeps: `count` of each, a multiple of 8.

/// dtrun_check_gradients: whether this step's reduced gradients are finite, and what follows: the
/// scale of the next step, and whether this one is an update.
struct CheckGradientsArgs {
  const float* gradients;
  StepState* state;
  uint32_t* counter;  // 0
  uint64_t count;
  RateRule rate;
  ScaleRule scale;
};

/// dtrun_adam_f32, _bf16, _f16: models/optim/adam.h's formula, and the copy of the new values that
/// the next step computes with (f32: none). Nothing when the step is skipped.
struct AdamArgs {
  float* values;
  const float* gradients;
  float *m, *v;
  void* copy;
  const StepState* state;
  uint64_t count;
  float m_share, v_share, epsilon;
};

/// dtrun_sgd_f32, _bf16, _f16: models/optim/sgd.h's.
struct SgdArgs {
  float* values;
  const float* gradients;
  float* velocity;  // null: no momentum
  void* copy;
  const StepState* state;
  uint64_t count;
  float momentum, decay;
  uint32_t nesterov;
};

/// dtrun_narrow_bf16, _f16: the copy alone, of values that somebody has set.
struct NarrowArgs {
  const float* values;
  void* copy;
  uint64_t count;
};

}  // namespace dtrun::models

#endif
