#ifndef DTRUN_MODELS_GPU_LOSS_KERNELS_H_
#define DTRUN_MODELS_GPU_LOSS_KERNELS_H_

#include <cstdint>

#include "models/gpu/step_state.h"

namespace dtrun::models {

/// dtrun_loss_f32, _bf16, _f16: softmax cross-entropy, its gradient times the loss's scale, and
/// what the metrics count. Rows from `state->now.examples` on have the label -1 and count for
/// nothing.
struct LossArgs {
  const float* logits;    // (rows, stride)
  const int32_t* wanted;  // (rows): labels
  StepState* state;       // loss_sum, correct and examples are added to
  void* gradients;        // (rows, stride), zeros behind the classes; null: not asked for
  float* bias_gradient;   // (stride), likewise
  float* losses;          // the batch's part of the loss at now.loss_slot; null: not asked for
  float* partials;        // (blocks, stride + 2)
  uint32_t* counter;      // 0
  uint32_t rows, classes, stride;
};

}  // namespace dtrun::models

#endif
