#ifndef DTRUN_MODELS_GPU_INPUT_KERNELS_H_
#define DTRUN_MODELS_GPU_INPUT_KERNELS_H_

#include <cstdint>

#include "models/gpu/step_state.h"

namespace dtrun::models {

/// dtrun_begin_step: one thread. `advance`: the update of this step is counted now, since it will
/// be made; with a LossScale that is only known when the gradients are there.
struct BeginStepArgs {
  StepState* state;
  StepValues values;
  RateRule rule;
  uint32_t advance;
};

/// dtrun_gather_f32, _bf16, _f16: the step's examples out of a data set of bytes, both of which
/// `state` names, as values of byte / 255; rows behind them up to `rows` become zeros, their labels
/// -1.
struct GatherArgs {
  const StepState* state;
  void* inputs;     // (rows, pixels)
  int32_t* wanted;  // (rows): labels
  uint32_t rows, pixels;
};

}  // namespace dtrun::models

#endif
