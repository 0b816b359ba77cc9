#ifndef DTRUN_MODELS_GPU_STEP_STATE_H_
#define DTRUN_MODELS_GPU_STEP_STATE_H_

#include <cstdint>

namespace dtrun::models {

/// What differs from step to step. A step's kernels are launched as a graph, always with the same
/// arguments: what they need to know of their step they read from StepState in device memory.
struct StepValues {
  uint64_t step = 0;                ///< selects the dropout masks
  const uint8_t* images = nullptr;  ///< (all, pixels), of which the batch has those of
  const uint32_t* order = nullptr;  ///< (examples); null: the first ones
  const uint8_t* labels = nullptr;  ///< (all)
  uint32_t first_position = 0;      ///< of it in the global batch, which selects the masks as well
  uint32_t examples = 0;            ///< that count; the rows behind them contribute nothing
  float loss_factor = 0;            ///< 1 / examples of the global batch
  uint32_t loss_slot = 0;           ///< where the loss of the batch goes
  float rate = 0;                   ///< the learning rate
};

/// In device memory. `now` is written when a step begins; the rest goes on from step to step.
struct StepState {
  StepValues now;

  /// Updates that the optimizer has made: Adam's t. Skipped steps are none.
  uint64_t updates = 0;
  float update_rate = 0;  ///< the learning rate of this step, with Adam's corrections

  // Of a LossScale: see models/train/loss_scale.h.
  float scale = 1;          ///< of the gradients, in the step at hand
  float unscale = 1;        ///< what the reduced gradients are multiplied by
  uint32_t good_steps = 0;  ///< since the scale has changed
  uint32_t skip = 0;        ///< 1: this step's gradients are not finite
  uint32_t not_finite = 0;  ///< set while they are looked at
  uint64_t skipped_steps = 0;

  // Since somebody has set them to zero.
  double loss_sum = 0;
  uint64_t correct = 0, examples = 0;
};

/// What the corrections of a step need; those of Adam::BeginStep.
struct RateRule {
  double beta1 = 0, beta2 = 0;  ///< 0: the rate is used as it is
};

/// Of dynamic loss scaling.
struct ScaleRule {
  uint32_t growth_interval = 2000;
  float largest = 16777216;  // 2^24
};

}  // namespace dtrun::models

#endif
