#ifndef DTRUN_MODELS_GPU_LAYER_ARGS_H_
#define DTRUN_MODELS_GPU_LAYER_ARGS_H_

#include <cstdint>

// The arguments of the kernels: one kernel per operation of a layer, for any number of channels.
//
// Kernels of activations exist for three types: dtrun_layer_<name>_f32, _bf16 and _f16. `void*` is
// an array of that type. The kernels compute in f32. Parameters, their gradients, statistics and
// the state of optimizers are f32. Activations are (rows, height, width, channels), with the
// channels last. They have fewer than 2^31 values. A pixel is one (row, height, width), so a tensor
// is also (pixels, channels), and the activations of a dense layer are (pixels = rows, channels).
//
// Blocks have 256 threads. The number of blocks is any number of at least 1, in one dimension,
// unless a comment says otherwise. Arrays do not overlap, unless a comment says "may be".
//
// Sums have the same bits in every run with the same number of blocks. A kernel that computes sums
// needs `partials` for the sums of its blocks, and `counters`, which are 0 before and after the
// kernel.

namespace dtrun::models {

/// Kernels that compute sums per channel are launched with this number of blocks in y, and with any
/// number of blocks in x.
constexpr uint32_t kChannelTile = 32;
constexpr uint32_t ChannelTiles(uint32_t channels) {
  return (channels + kChannelTile - 1) / kChannelTile;
}

/// The constants of a dropout layer, as in Dropout (models/layers/activations.h).
struct DropoutRule {
  uint32_t keep_below = 65536;  ///< keeps 16-bit draws below this; 65536: no dropout
  float scale = 1;              ///< factor of kept values
  uint32_t key0 = 0, key1 = 0, domain = 0;
};

// ---- Element by element -------------------------------------------------------------------------

// A ReLU computes max(x, 0). NaN stays NaN.

/// dtrun_layer_bias: y(pixel, c) = x(pixel, c) + bias(c), then a ReLU if `relu` is not 0.
struct LayerBiasArgs {
  const void* inputs;  // (pixels, channels)
  const float* bias;   // (channels)
  void* outputs;       // (pixels, channels); may be `inputs`
  uint32_t pixels, channels;
  uint32_t relu;
};

/// dtrun_layer_relu_gradient: dx = y > 0 ? dy : 0.
struct LayerReluGradientArgs {
  const void* outputs;  // y; or x, which has the same sign
  const void* output_gradients;
  void* input_gradients;  // may be `output_gradients` or `outputs`
  uint32_t count;
};

/// dtrun_layer_add: y = a + b, or y = a if `b` is null; then a ReLU if `relu` is not 0. With
/// `outputs` = `a`, the kernel computes a += b.
struct LayerAddArgs {
  const void *a, *b;
  void* outputs;  // may be `a` or `b`
  uint32_t count;
  uint32_t relu;
};

/// dtrun_layer_dropout: y = keep ? scale * x : 0. `keep` has the bits of Dropout
/// (models/layers/activations.h). If rule.keep_below is 65536, the kernel keeps all values.
struct LayerDropoutArgs {
  const void* inputs;  // (rows, width)
  void* outputs;       // (rows, width); may be `inputs`
  uint8_t* keep;       // (rows, width): 1 or 0; null: not written
  uint64_t step;
  uint32_t first_position;  // of row 0 in the global batch
  uint32_t rows, width;     // width: height * width * channels of an example
  DropoutRule rule;
};

/// dtrun_layer_dropout_gradient: dx = keep ? scale * dy : 0.
struct LayerDropoutGradientArgs {
  const void* output_gradients;
  const uint8_t* keep;
  void* input_gradients;  // may be `output_gradients`
  uint32_t count;
  float scale;
};

// ---- Channel by channel -------------------------------------------------------------------------

/// dtrun_layer_column_sums: sums(c) = (add ? sums(c) : 0) + the sum over the pixels of x(pixel, c).
/// This is the gradient of a bias. Blocks in y: ChannelTiles(channels).
struct LayerColumnSumsArgs {
  const void* values;  // (pixels, channels)
  float* sums;         // (channels)
  double* partials;    // (blocks in x, channels)
  uint32_t* counters;  // (ChannelTiles(channels))
  uint32_t pixels, channels;
  uint32_t add;
};

/// dtrun_layer_softmax: y(k) = exp(x(k)) / sum over j of exp(x(j)), over the channels of a pixel.
struct LayerSoftmaxArgs {
  const void* inputs;  // (pixels, channels)
  void* outputs;       // (pixels, channels); may be `inputs`
  uint32_t pixels, channels;
};

/// dtrun_layer_softmax_gradient: dx(k) = y(k) * (dy(k) - sum over j of dy(j) * y(j)). The kernel
/// computes y from x.
struct LayerSoftmaxGradientArgs {
  const void* inputs;            // x: (pixels, channels)
  const void* output_gradients;  // (pixels, channels)
  void* input_gradients;         // (pixels, channels); may be `output_gradients`
  uint32_t pixels, channels;
};

// ---- Pooling ------------------------------------------------------------------------------------

/// Windows as in models/layers/settings.h. Window (h, w) of the output covers the input pixels from
/// (h * stride - rows_before, w * stride - columns_before) on, `size` in each direction. The pixels
/// outside the image are padding. They count neither in a maximum nor in a mean. Each window has at
/// least one pixel of the image.
struct LayerWindows {
  uint32_t rows, height, width, channels;  // of the input
  uint32_t output_height, output_width;
  uint32_t size, stride;  // size: at most 255
  uint32_t rows_before, columns_before;
};

/// dtrun_layer_max_pool and dtrun_layer_average_pool. In a maximum, the first of equal values wins,
/// and the first NaN wins over all other values.
struct LayerPoolArgs {
  const void* inputs;  // (rows, height, width, channels)
  void* outputs;       // (rows, output_height, output_width, channels)
  /// Only dtrun_layer_max_pool: which pixel of the window is the maximum, counted row by row,
  /// including the padding. In the shape of the outputs. Null: not written.
  uint16_t* winners;
  LayerWindows windows;
};

/// dtrun_layer_max_pool_gradient and dtrun_layer_average_pool_gradient. Each pixel of the input
/// adds the gradients of the windows that contain the pixel.
struct LayerPoolGradientArgs {
  const void* output_gradients;  // (rows, output_height, output_width, channels)
  const uint16_t* winners;       // of dtrun_layer_max_pool; null for an average
  void* input_gradients;         // (rows, height, width, channels)
  LayerWindows windows;
};

/// dtrun_layer_global_average: the mean over the pixels of each row.
/// dtrun_layer_global_average_gradient: dx(row, pixel, c) = dy(row, c) / pixels.
struct LayerGlobalAverageArgs {
  const void* from;  // (rows, pixels, channels); for the gradient: dy, (rows, channels)
  void* to;          // (rows, channels); for the gradient: dx, (rows, pixels, channels)
  uint32_t rows, pixels, channels;  // pixels: height * width
};

// ---- Batch normalisation ------------------------------------------------------------------------

// The formulas are those of BatchNorm (models/layers/batch_norm.cc). In training:
//   forward   dtrun_layer_channel_sums, dtrun_layer_batch_norm_statistics, dtrun_layer_batch_norm
//   backward  dtrun_layer_batch_norm_gradient_sums, dtrun_layer_batch_norm_parameter_gradients,
//             dtrun_layer_batch_norm_factors, dtrun_layer_batch_norm_gradient
// Outside training: dtrun_layer_batch_norm_statistics without sums, dtrun_layer_batch_norm.
//
// `pixels` are the pixels of the valid examples: examples * height * width.
//
// Sums are (2 * channels + 1) doubles: the first sums, the second sums, and the number of pixels.
// Synchronised normalisation adds the sums of all ranks with one all-reduce before
// dtrun_layer_batch_norm_statistics, and before dtrun_layer_batch_norm_factors.

/// The mean and the linear function of each channel. All arrays are (channels).
struct LayerNormalization {
  float* mean;
  double* reciprocal;     // 1 / sqrt(variance + epsilon)
  float *scale, *offset;  // y = scale * x + offset
};

/// dtrun_layer_channel_sums: the sums of x and of x^2 over the pixels. The kernel sums differences
/// from the first value of each channel, and corrects the results in f64. Blocks in y:
/// ChannelTiles(channels).
struct LayerChannelSumsArgs {
  const void* inputs;  // (pixels, channels)
  double* sums;        // (2 * channels + 1)
  double* partials;    // (blocks in x, 2 * channels)
  uint32_t* counters;  // (ChannelTiles(channels))
  uint32_t pixels, channels;
};

/// dtrun_layer_batch_norm_statistics (no suffix): computes the normalisation. If there are sums and
/// their number of pixels is not 0, the kernel uses the mean and variance of the batch and renews
/// the moving averages. Otherwise, it uses the moving averages.
struct LayerStatisticsArgs {
  const double* sums;         // (2 * channels + 1), of dtrun_layer_channel_sums; null: inference
  const float *gamma, *beta;  // (channels)
  float *moving_mean, *moving_variance;  // (channels)
  LayerNormalization normalization;      // written
  uint32_t channels;
  double momentum, epsilon;
};

/// dtrun_layer_batch_norm: y = scale(c) * x + offset(c), then a ReLU if `relu` is not 0.
struct LayerBatchNormArgs {
  const void* inputs;           // (pixels, channels)
  void* outputs;                // (pixels, channels); may be `inputs`
  const float *scale, *offset;  // (channels)
  uint32_t pixels, channels;
  uint32_t relu;
};

/// dtrun_layer_batch_norm_gradient_sums: the sums of dy and of dy * (x - mean). If `relu` is not 0,
/// dy counts only where scale * x + offset > 0. Blocks in y: ChannelTiles(channels).
struct LayerGradientSumsArgs {
  const void *inputs, *output_gradients;  // (pixels, channels)
  LayerNormalization normalization;       // read
  double* sums;                           // (2 * channels + 1)
  double* partials;                       // (blocks in x, 2 * channels)
  uint32_t* counters;                     // (ChannelTiles(channels))
  uint32_t pixels, channels;
  uint32_t relu;
};

/// dtrun_layer_batch_norm_parameter_gradients (no suffix): with the sums of this rank, d beta = the
/// first sums, d gamma = reciprocal * the second sums. If `add` is not 0, the kernel adds to the
/// gradients.
struct LayerNormGradientsArgs {
  const double* sums;                     // of dtrun_layer_batch_norm_gradient_sums
  const double* reciprocal;               // (channels)
  float *gamma_gradient, *beta_gradient;  // (channels)
  uint32_t channels;
  uint32_t add;
};

/// dtrun_layer_batch_norm_factors (no suffix): the factors of dx, with the sums of this rank, or of
/// all ranks if the normalisation is synchronised.
struct LayerNormFactorsArgs {
  const double* sums;                // of dtrun_layer_batch_norm_gradient_sums
  const float* gamma;                // (channels)
  LayerNormalization normalization;  // read
  float* factors;                    // (3, channels): of dy, of x, and the constant
  uint32_t channels;
};

/// dtrun_layer_batch_norm_gradient: dx = factors(0, c) * dy + factors(1, c) * x + factors(2, c). If
/// `relu` is not 0, dy counts only where scale * x + offset > 0. Pixels from `pixels` to
/// `all_pixels` get zeros.
struct LayerBatchNormGradientArgs {
  const void *inputs, *output_gradients;  // (pixels, channels)
  void* input_gradients;        // (all_pixels, channels); may be `inputs` or `output_gradients`
  const float* factors;         // (3, channels)
  const float *scale, *offset;  // (channels); only read if `relu`
  uint32_t pixels, all_pixels, channels;
  uint32_t relu;
};

// ---- Conversions --------------------------------------------------------------------------------

/// dtrun_layer_narrow: converts f32 to the type of the suffix.
struct LayerNarrowArgs {
  const float* from;
  void* to;
  uint32_t count;
};

/// dtrun_layer_widen: converts the type of the suffix to f32. If `add` is not 0, adds to `to`.
struct LayerWidenArgs {
  const void* from;
  float* to;
  uint32_t count;
  uint32_t add;
};

/// dtrun_layer_shift: copies images to another size. to(row, y, x, c) = from(row, y + down,
/// x + right, c), and 0 outside `from`.
struct LayerShiftArgs {
  const void* from;  // (rows, from_height, from_width, channels)
  void* to;          // (rows, to_height, to_width, channels)
  uint32_t rows, channels, from_height, from_width, to_height, to_width;
  int32_t down, right;
};

/// dtrun_layer_pack_filters: the kernel of a convolution in the order of Keras, to the order of
/// cuDNN and the type of the suffix.
struct LayerPackFiltersArgs {
  const float* from;               // (taps, inputs, filters); taps: size * size
  void* to;                        // (filters, taps, inputs)
  uint32_t taps, inputs, filters;  // inputs: input channels
};

/// dtrun_layer_unpack_filters: the gradient of such a kernel, from the type of the suffix to f32.
/// If `add` is not 0, the kernel adds to `to`.
struct LayerUnpackFiltersArgs {
  const void* from;  // (filters, taps, inputs)
  float* to;         // (taps, inputs, filters)
  uint32_t taps, inputs, filters;
  uint32_t add;
};

// ---- Flat f32 arrays: penalties and updates -----------------------------------------------------

// These kernels have no suffix. An array has `count` floats.

/// dtrun_layer_axpy: to += factor * from.
struct LayerAxpyArgs {
  const float* from;
  float* to;
  uint64_t count;
  float factor;
};

// The updates make the same operations in the same order as models/optim/update_rules.h. A descent
// rounds each operation separately, so its results have the bits of the CPU. The compilers may join
// a product and a sum of Adam and Lamb, here and on the CPU, so their last bits can differ.

/// dtrun_layer_adam: UpdateAdam, with the members of AdamFactors.
struct LayerAdamArgs {
  const float* gradients;
  float *m, *v, *values;
  uint64_t count;
  float rate;  // with the corrections for the first steps
  float m_share, v_share, epsilon;
  float decay;  // learning rate times weight decay
};

/// dtrun_layer_descend: Descend. dtrun_layer_descend_with_momentum: DescendWithMomentum. Both with
/// the members of DescentFactors.
struct LayerDescentArgs {
  const float* gradients;
  float* velocity;  // dtrun_layer_descend does not use it
  float* values;
  uint64_t count;
  float rate, momentum, decay;
  uint32_t nesterov;
};

/// The members of LambFactors.
struct LayerLambRule {
  float m_share, v_share, m_correction, v_correction, epsilon, decay;
};

/// dtrun_layer_lamb_moments: UpdateLambMoments. The order of the f64 sums differs from the CPU.
struct LayerLambMomentsArgs {
  const float* gradients;
  float *m, *v;
  const float* values;
  double* squares;     // (2): the squared norms of the update and of the values
  double* partials;    // (blocks, 2)
  uint32_t* counters;  // (1)
  uint64_t count;
  LayerLambRule rule;
};

/// dtrun_layer_lamb_apply: ApplyLamb with the rate `learning_rate` * |values| / |update|. The ratio
/// is 1 if one of the norms is 0, and if there are no squares.
struct LayerLambApplyArgs {
  const float *m, *v;
  float* values;
  const double* squares;  // of dtrun_layer_lamb_moments; null: the ratio is 1
  uint64_t count;
  double learning_rate;
  LayerLambRule rule;
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_GPU_LAYER_ARGS_H_
