#ifndef DTRUN_MODELS_GPU_POOL_KERNELS_H_
#define DTRUN_MODELS_GPU_POOL_KERNELS_H_

#include <cstdint>

#include "models/gpu/step_state.h"

namespace dtrun::models {

/// The constants of a dropout layer: those of models/layers/dropout.h.
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

}  // namespace dtrun::models

#endif
