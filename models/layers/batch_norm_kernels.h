#ifndef DTRUN_MODELS_LAYERS_BATCH_NORM_KERNELS_H_
#define DTRUN_MODELS_LAYERS_BATCH_NORM_KERNELS_H_

#include <cstddef>

namespace dtrun::models {

/// A group of channels of one example: `pixels` times `block` values (see Tensor).
struct ChannelGroup {
  size_t pixels = 0, block = 0;
};

/// sums(c) = sum over the pixels of x - center(c); squares(c) likewise of (x - center(c))^2. With a
/// center near the mean little is lost by the subtraction of large squares: T. F. Chan, G. H.
/// Golub, R. J. LeVeque, The American Statistician 37 (1983), section 3.
void CenteredSums(
    const float* x, const ChannelGroup& group, const float* center, double* sums, double* squares);

/// sums(c) = sum of dy; products(c) = sum of dy * (x - center(c))
void GradientSums(
    const float* x, const float* dy, const ChannelGroup& group, const float* center, double* sums,
    double* products);

/// y = scale(c) * x + offset(c), and then max(0, it) if `relu`
void ScaleChannels(
    const float* x, const ChannelGroup& group, const float* scale, const float* offset, bool relu,
    float* y);

/// dx = a(c) * dy + b(c) * x + d(c), and 0 where `mask` and x <= 0. `dx` may be `x`.
void CombineGradients(
    const float* x, const float* dy, const ChannelGroup& group, const float* a, const float* b,
    const float* d, bool mask, float* dx);

}  // namespace dtrun::models

#endif
