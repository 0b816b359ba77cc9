#ifndef DTRUN_MODELS_GPU_KERNEL_ARGS_H_
#define DTRUN_MODELS_GPU_KERNEL_ARGS_H_

#include <cstdint>

namespace dtrun::models {

/// The values that change from step to step. A step's kernels are launched as a graph with fixed
/// arguments. The kernels read these values from StepState in device memory.
struct StepValues {
  uint64_t step = 0;                ///< selects the dropout masks
  const uint8_t* images = nullptr;  ///< (all, pixels)
  const uint32_t* order = nullptr;  ///< (examples) indices of images; null: the first images
  const uint8_t* labels = nullptr;  ///< (all)
  uint32_t first_position = 0;      ///< of the batch in the global batch; also selects the masks
  uint32_t examples = 0;            ///< examples of the batch; later rows do not count
  float loss_factor = 0;            ///< 1 / examples of the global batch
  uint32_t loss_slot = 0;           ///< index in LossArgs::losses
  float rate = 0;                   ///< the learning rate
};

/// The state of a replica in device memory. dtrun_begin_step writes `now`. The other members
/// continue from step to step.
struct StepState {
  StepValues now;

  /// Updates that the optimizer has made (Adam's t), without skipped steps.
  uint64_t updates = 0;
  float update_rate = 0;  ///< the learning rate of this step, with Adam's corrections

  // The LossScale (dtrun/distributed_optimizer.h).
  float scale = 1;          ///< factor of the gradients in this step
  float unscale = 1;        ///< factor that the update applies to the reduced gradients
  uint32_t good_steps = 0;  ///< steps in a row, since the last change of the scale
  uint32_t skip = 0;        ///< 1: this step's gradients are not finite
  uint32_t not_finite = 0;  ///< used by dtrun_check_gradients only
  uint64_t skipped_steps = 0;

  // Sums since the host has last set them to zero.
  double loss_sum = 0;
  uint64_t correct = 0, examples = 0;
};

/// Adam's corrections of the learning rate, as in Adam::BeginStep.
struct RateRule {
  double beta1 = 0, beta2 = 0;  ///< beta2 is 0: no correction
};

/// The rule of dynamic loss scaling.
struct ScaleRule {
  uint32_t growth_interval = 2000;
  float largest = 16777216;  // 2^24
};

/// dtrun_begin_step: one thread. If `advance` is not 0, the kernel counts the update of this step.
/// With a LossScale, dtrun_check_gradients counts the update, because it depends on the gradients.
struct BeginStepArgs {
  StepState* state;
  StepValues values;
  RateRule rule;
  uint32_t advance;
};

/// dtrun_gather_f32, _bf16, _f16: copies the step's examples from a data set of bytes, as values of
/// byte / 255. `state` has the addresses of the data set and the order. Rows behind the examples,
/// up to `rows`, become zeros, and their labels become -1.
struct GatherArgs {
  const StepState* state;
  void* inputs;     // (rows, pixels)
  int32_t* wanted;  // (rows): labels
  uint32_t rows, pixels;
};

// The first convolution has one input channel, 3 x 3 filters, no padding and a ReLU. `filters` is
// 8, 16, 32, 64, 128 or 256. The kernel is (9, filters), as in Keras. Activations have their
// channels last.

/// dtrun_first_convolution_f32, _bf16, _f16. Dynamic shared memory: height * width floats.
struct FirstConvolutionArgs {
  const void* inputs;   // (rows, height, width)
  const float* kernel;  // (9, filters)
  const float* bias;    // (filters)
  void* outputs;        // (rows, height - 2, width - 2, filters)
  /// (rows, height - 2, width - 2, filters / 8): each bit of a byte says whether a filter's output
  /// is above zero; the lowest bit is the first of 8 filters. Null: no mask is written.
  uint8_t* mask;
  uint32_t rows, height, width, filters;
};

/// dtrun_first_convolution_gradient_f32, _bf16, _f16: the gradients of the kernel and the bias.
/// Dynamic shared memory as above.
struct FirstConvolutionGradientArgs {
  const void* inputs;            // as above
  const uint8_t* mask;           // as above: where the gradient passes; null: everywhere
  const void* output_gradients;  // (rows, height - 2, width - 2, filters)
  float* kernel_gradient;        // (9, filters)
  float* bias_gradient;          // (filters)
  float* partials;               // (blocks, 10 * filters)
  uint32_t* counter;             // 0 before and after the kernel
  uint32_t rows, height, width, filters;
};

/// dtrun_widen_bf16, _f16: converts the gradient of filters to f32. cuDNN writes it in the type of
/// the computation.
struct WidenArgs {
  const void* from;
  float* to;
  uint64_t count;  // a multiple of 8
};

/// The constants of a dropout layer, as in Dropout (models/layers/activations.h).
struct DropoutRule {
  uint32_t keep_below = 65536;  ///< keeps 16-bit draws below this; 65536: no dropout
  float scale = 1;              ///< factor of kept values
  uint32_t key0 = 0, key1 = 0, domain = 0;
};

// All tensors of the kernels below have fewer than 2^31 values.

/// dtrun_pool_f32, _bf16, _f16: maxima over windows of 2 x 2, then dropout. Windows that stick out
/// at the right or at the bottom have no output. If `bias` is set, the kernel also applies the bias
/// and the ReLU of the convolution before the pool. Channels are a multiple of 8.
struct PoolArgs {
  const void* inputs;  // (rows, height, width, channels)
  const float* bias;   // (channels); null: the inputs already have bias and ReLU
  void* outputs;       // (rows, height / 2, width / 2, channels)
  /// Where an output's gradient goes, in the shape of the outputs. 0 to 3 is an element of the
  /// window, row by row; 4 is nowhere. Null in a test, which has no dropout.
  uint8_t* winners;
  const StepState* state;
  uint32_t rows, height, width, channels;
  DropoutRule dropout;
};

/// dtrun_pool_gradient_f32, _bf16, _f16: the backward pass of dtrun_pool, which also sums the
/// gradient of the bias. Channels are 8, 16, 32, ... 256.
struct PoolGradientArgs {
  const void* output_gradients;
  const uint8_t* winners;
  void* input_gradients;  // zero except for the winners
  float* bias_gradient;   // (channels); null: not computed
  float* partials;        // (blocks, channels)
  uint32_t* counter;      // 0 before and after the kernel
  uint32_t rows, height, width, channels;
  float scale;  // of values that dropout has kept
};

/// dtrun_dropout_f32, _bf16, _f16: in place. `width` is a multiple of 8.
struct DropoutArgs {
  void* values;  // (rows, width)
  /// (rows, mask_bytes): bit i % 8 of byte i / 8 of a row says whether value i is above zero after
  /// dropout. Null: no mask is written.
  uint8_t* mask;
  const StepState* state;
  uint32_t rows, width, mask_bytes;
  DropoutRule dropout;
};

/// dtrun_relu_gradient_f32, _bf16, _f16: the backward pass of a dense layer's dropout and ReLU, in
/// place. The kernel also sums the gradient of the bias. `width` is 8, 16, 32, ... 256.
struct ReluGradientArgs {
  const void* outputs;   // (rows, width), after dropout: above zero where a gradient passes
  void* gradients;       // (rows, width)
  float* bias_gradient;  // (width)
  float* partials;       // (blocks, width)
  uint32_t* counter;     // 0 before and after the kernel
  uint32_t rows, width;
  float scale;  // of values that dropout has kept
};

/// dtrun_loss_f32, _bf16, _f16: softmax cross-entropy, its gradient times the loss scale, and the
/// sums for the metrics. Rows from `state->now.examples` on have the label -1 and do not count.
struct LossArgs {
  const float* logits;    // (rows, stride)
  const int32_t* wanted;  // (rows): labels
  StepState* state;       // the kernel adds to loss_sum, correct and examples
  void* gradients;        // (rows, stride), zeros behind the classes; null: not computed
  float* bias_gradient;   // (stride), zeros behind the classes; null with `gradients`
  float* losses;          // gets the batch's part of the loss at now.loss_slot; null: none
  float* partials;        // (blocks, stride + 2)
  uint32_t* counter;      // 0 before and after the kernel
  uint32_t rows, classes, stride;
};

// The parameters, their gradients and each part of the optimizer's state are flat blocks of `count`
// floats. `count` is a multiple of 8.

/// dtrun_check_gradients: checks whether this step's reduced gradients are finite. The result
/// decides the scale of the next step, and whether this step is an update.
struct CheckGradientsArgs {
  const float* gradients;
  StepState* state;
  uint32_t* counter;  // 0 before and after the kernel
  uint64_t count;
  RateRule rate;
  ScaleRule scale;
};

/// dtrun_adam_f32, _bf16, _f16: the formula of models/optim/adam.h. Except in f32, the kernel also
/// writes `copy`, the new values in the type that the next step computes with. The kernel changes
/// no values if the step is skipped.
struct AdamArgs {
  float* values;
  const float* gradients;
  float *m, *v;
  void* copy;
  const StepState* state;
  uint64_t count;
  float m_share, v_share, epsilon;
};

/// dtrun_sgd_f32, _bf16, _f16: the formula of models/optim/sgd.h; otherwise as dtrun_adam.
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

/// dtrun_narrow_bf16, _f16: writes only `copy`, after the host has set the values.
struct NarrowArgs {
  const float* values;
  void* copy;
  uint64_t count;
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_GPU_KERNEL_ARGS_H_
