#ifndef DTRUN_MODELS_GPU_CONVOLUTION_KERNELS_H_
#define DTRUN_MODELS_GPU_CONVOLUTION_KERNELS_H_

#include <cstdint>

namespace dtrun::models {

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

}  // namespace dtrun::models

#endif
