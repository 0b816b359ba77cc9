#ifndef DTRUN_MODELS_GPU_KERNEL_ARGS_H_
#define DTRUN_MODELS_GPU_KERNEL_ARGS_H_

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

  // Of a LossScale: see models/train/replica.h.
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

// The first convolution: one input channel, 3 x 3, without padding, and a ReLU. Filters are 8, 16,
// 32, 64, 128 or 256; the kernel is (9, filters), as Keras has it, and the activations have their
// channels last.

/// dtrun_first_convolution_f32, _bf16, _f16. Dynamic shared memory: height * width floats.
struct FirstConvolutionArgs {
  const void* inputs;   // (rows, height, width)
  const float* kernel;  // (9, filters)
  const float* bias;    // (filters)
  void* outputs;        // (rows, height - 2, width - 2, filters)
  /// (rows, height - 2, width - 2, filters / 8): the bits of a byte say which of 8 filters have
  /// outputs above zero, the lowest the first one; null: nobody asks
  uint8_t* mask;
  uint32_t rows, height, width, filters;
};

/// dtrun_first_convolution_gradient_f32, _bf16, _f16: what the kernel and the bias get. Shared
/// memory as above.
struct FirstConvolutionGradientArgs {
  const void* inputs;            // as above
  const uint8_t* mask;           // as above: where the ReLU lets pass; null: everywhere
  const void* output_gradients;  // (rows, height - 2, width - 2, filters)
  float* kernel_gradient;        // (9, filters)
  float* bias_gradient;          // (filters)
  float* partials;               // (blocks, 10 * filters)
  uint32_t* counter;             // 0
  uint32_t rows, height, width, filters;
};

/// dtrun_widen_bf16, _f16: cuDNN leaves a filter's gradient in the type it computes in.
struct WidenArgs {
  const void* from;
  float* to;
  uint64_t count;  // a multiple of 8
};

/// The constants of a dropout layer: those of Dropout in models/layers/activations.h.
struct DropoutRule {
  uint32_t keep_below = 65536;  ///< of 2^16; all of them: no dropout
  float scale = 1;              ///< of what is kept
  uint32_t key0 = 0, key1 = 0, domain = 0;
};

// Tensors of all these have fewer than 2^31 values.

/// dtrun_pool_f32, _bf16, _f16: maxima over windows of 2 x 2, without those that would stick out at
/// the right and below; if the inputs are what a convolution has left without its bias and ReLU,
/// those; and dropout. Channels are a multiple of 8.
struct PoolArgs {
  const void* inputs;  // (rows, height, width, channels)
  const float* bias;   // (channels); null: the inputs have been through bias and ReLU
  void* outputs;       // (rows, height / 2, width / 2, channels)
  /// Where an output's gradient goes: 0 to 3, the window's element row by row; 4: nowhere. As the
  /// outputs; null: in a test, where nothing is dropped.
  uint8_t* winners;
  const StepState* state;
  uint32_t rows, height, width, channels;
  DropoutRule dropout;
};

/// dtrun_pool_gradient_f32, _bf16, _f16: the way back through all of that, which also sums the
/// gradient of the bias. Channels are 8, 16, 32, ... 256.
struct PoolGradientArgs {
  const void* output_gradients;
  const uint8_t* winners;
  void* input_gradients;  // zero but for the winners
  float* bias_gradient;   // (channels); null: nobody asks
  float* partials;        // (blocks, channels)
  uint32_t* counter;      // 0
  uint32_t rows, height, width, channels;
  float scale;  // of what was not dropped
};

/// dtrun_dropout_f32, _bf16, _f16: in place. `width` is a multiple of 8.
struct DropoutArgs {
  void* values;  // (rows, width)
  /// (rows, mask_bytes): bit i % 8 of byte i / 8 of a row says whether value i is above zero now;
  /// null: nobody asks
  uint8_t* mask;
  const StepState* state;
  uint32_t rows, width, mask_bytes;
  DropoutRule dropout;
};

/// dtrun_relu_gradient_f32, _bf16, _f16: the way back through dropout and ReLU of a dense layer, in
/// place, and the gradient of its bias. `width` is 8, 16, 32, ... 256.
struct ReluGradientArgs {
  const void* outputs;   // (rows, width), with the dropout: above zero where a gradient passes
  void* gradients;       // (rows, width)
  float* bias_gradient;  // (width)
  float* partials;       // (blocks, width)
  uint32_t* counter;     // 0
  uint32_t rows, width;
  float scale;  // of what was not dropped
};

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

#endif  // DTRUN_MODELS_GPU_KERNEL_ARGS_H_
