// Batch normalisation, with the formulas of models/layers/batch_norm.cc. The forward pass and the
// backward pass each sum over all pixels, compute a few numbers per channel in f64, and then go
// through all pixels once more.

#include "gpu/kernel.h"
#include "models/gpu/layer_args.h"
#include "models/gpu/layer_math.cuh"

namespace dtrun::models {
namespace {

// All kernels use this function, so the backward pass of the ReLU sees the sign of the forward
// pass.
__device__ inline float Normalized(const float* scale, const float* offset, uint32_t c, float x) {
  return fmaf(scale[c], x, offset[c]);
}

template <typename T>
__device__ void ChannelSums(const LayerChannelSumsArgs& args) {
  const uint32_t channels = args.channels;
  const auto center = [&](uint32_t c) { return args.pixels == 0 ? 0 : Load<T>(args.inputs, c); };
  SumColumns<2>(
      args.pixels, channels, args.partials, args.counters,
      [&](uint32_t i, uint32_t c, float* sums) {
        const float value = Load<T>(args.inputs, i) - center(c);
        sums[0] += value;
        sums[1] += value * value;
      },
      [&](uint32_t c, const double* sums) {
        const auto from = static_cast<double>(center(c)), count = static_cast<double>(args.pixels);
        args.sums[c] = sums[0] + count * from;
        args.sums[channels + c] = sums[1] + from * (2 * sums[0] + count * from);
        if (c == 0) args.sums[2 * channels] = count;
      });
}

// Writes the normalisation of one channel.
__device__ inline void UseStatistics(
    const LayerStatisticsArgs& args, uint32_t c, double mean, double variance) {
  const LayerNormalization& to = args.normalization;
  const auto gamma = static_cast<double>(args.gamma[c]), beta = static_cast<double>(args.beta[c]);
  const double reciprocal = 1 / sqrt(variance + args.epsilon);
  to.reciprocal[c] = reciprocal;
  to.mean[c] = static_cast<float>(mean);
  to.scale[c] = static_cast<float>(gamma * reciprocal);
  to.offset[c] = static_cast<float>(beta - gamma * reciprocal * mean);
}

// moving = kept * moving + (1 - kept) * value
__device__ inline void Renew(float kept, double value, float& moving) {
  moving = __fmul_rn(kept, moving) + __fmul_rn(1 - kept, static_cast<float>(value));
}

template <typename T>
__device__ void Normalize(const LayerBatchNormArgs& args) {
  ForEach(args.pixels * args.channels, [&](uint32_t i) {
    const float value =
        Normalized(args.scale, args.offset, i % args.channels, Load<T>(args.inputs, i));
    Store<T>(args.relu != 0 ? Relu(value) : value, args.outputs, i);
  });
}

template <typename T>
__device__ void GradientSums(const LayerGradientSumsArgs& args) {
  const LayerNormalization& of = args.normalization;
  const uint32_t channels = args.channels;
  SumColumns<2>(
      args.pixels, channels, args.partials, args.counters,
      [&](uint32_t i, uint32_t c, float* sums) {
        const float x = Load<T>(args.inputs, i);
        if (args.relu != 0 && !(Normalized(of.scale, of.offset, c, x) > 0)) return;
        const float gradient = Load<T>(args.output_gradients, i);
        sums[0] += gradient;
        sums[1] += gradient * (x - of.mean[c]);
      },
      [&](uint32_t c, const double* sums) {
        args.sums[c] = sums[0];
        args.sums[channels + c] = sums[1];
        if (c == 0) args.sums[2 * channels] = static_cast<double>(args.pixels);
      });
}

template <typename T>
__device__ void InputGradient(const LayerBatchNormGradientArgs& args) {
  const uint32_t channels = args.channels;
  ForEach(args.all_pixels * channels, [&](uint32_t i) {
    if (i / channels >= args.pixels) return Store<T>(0, args.input_gradients, i);
    const uint32_t c = i % channels;
    const float x = Load<T>(args.inputs, i);
    const bool passes = args.relu == 0 || Normalized(args.scale, args.offset, c, x) > 0;
    const float gradient = passes ? Load<T>(args.output_gradients, i) : 0;
    const float* const factors = args.factors + c;
    Store<T>(
        factors[0] * gradient + (factors[channels] * x + factors[2 * channels]),
        args.input_gradients, i);
  });
}

}  // namespace

DTRUN_LAYER_KERNELS(channel_sums, LayerChannelSumsArgs, ChannelSums);

DTRUN_KERNEL(dtrun_layer_batch_norm_statistics, LayerStatisticsArgs) {
  const uint32_t channels = args.channels;
  const double count = args.sums == nullptr ? 0 : args.sums[2 * channels];
  const auto kept = static_cast<float>(args.momentum);
  ForEach(channels, [&](uint32_t c) {
    float &moving_mean = args.moving_mean[c], &moving_variance = args.moving_variance[c];
    if (!(count > 0)) {
      const auto mean = static_cast<double>(moving_mean);
      return UseStatistics(args, c, mean, static_cast<double>(moving_variance));
    }
    const double mean = args.sums[c] / count;
    double variance = args.sums[channels + c] / count - mean * mean;
    if (!(variance > 0)) variance = 0;
    UseStatistics(args, c, mean, variance);
    Renew(kept, mean, moving_mean);
    Renew(kept, variance, moving_variance);
  });
}

DTRUN_LAYER_KERNELS(batch_norm, LayerBatchNormArgs, Normalize);
DTRUN_LAYER_KERNELS(batch_norm_gradient_sums, LayerGradientSumsArgs, GradientSums);

DTRUN_KERNEL(dtrun_layer_batch_norm_parameter_gradients, LayerNormGradientsArgs) {
  ForEach(args.channels, [&](uint32_t c) {
    const auto beta = static_cast<float>(args.sums[c]);
    const auto gamma = static_cast<float>(args.reciprocal[c] * args.sums[args.channels + c]);
    args.beta_gradient[c] = args.add != 0 ? args.beta_gradient[c] + beta : beta;
    args.gamma_gradient[c] = args.add != 0 ? args.gamma_gradient[c] + gamma : gamma;
  });
}

// The comment of BatchNorm::Impl has the formula of dx. Here, dx is a linear function of dy and x.
DTRUN_KERNEL(dtrun_layer_batch_norm_factors, LayerNormFactorsArgs) {
  const uint32_t channels = args.channels;
  const double pixels = args.sums[2 * channels], count = pixels > 1 ? pixels : 1;
  ForEach(channels, [&](uint32_t c) {
    const double r = args.normalization.reciprocal[c];
    const auto gamma = static_cast<double>(args.gamma[c]);
    const auto mean = static_cast<double>(args.normalization.mean[c]);
    const double to_x = -gamma * r * r * r * args.sums[channels + c] / count;
    args.factors[c] = static_cast<float>(gamma * r);
    args.factors[channels + c] = static_cast<float>(to_x);
    args.factors[2 * channels + c] =
        static_cast<float>(-gamma * r * args.sums[c] / count - to_x * mean);
  });
}

DTRUN_LAYER_KERNELS(batch_norm_gradient, LayerBatchNormGradientArgs, InputGradient);

}  // namespace dtrun::models
