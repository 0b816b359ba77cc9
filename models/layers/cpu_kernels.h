#ifndef DTRUN_MODELS_LAYERS_CPU_KERNELS_H_
#define DTRUN_MODELS_LAYERS_CPU_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "models/layers/tensor.h"

namespace dtrun::models {

/// Element-wise kernels: what oneDNN has no primitive for, or none that makes one pass of it. Each
/// works on one thread, on memory of its caller.

/// to += from
void Add(const float* from, size_t count, float* to);

/// to += factor * from
void AddScaled(const float* from, size_t count, float factor, float* to);

/// Summed in double precision.
double SumOfSquares(const float* values, size_t count);

/// values = max(0, values)
void ApplyRelu(size_t count, float* values);

/// gradient = activation > 0 ? gradient : 0
void MaskByRelu(const float* activation, size_t count, float* gradient);
void MaskByRelu(const Bf16* activation, size_t count, Bf16* gradient);
/// The tensor's own gradient, of so many examples.
void MaskByRelu(const Tensor& tensor, size_t examples);

/// Each of `rows` rows of `values` += bias, and then max(0, it) if `relu`.
void AddBias(const float* bias, size_t rows, size_t count, bool relu, float* values);

/// sums = (add ? sums : 0) + the sum of the rows of `values`, added in row order
void SumRows(const float* values, size_t rows, size_t count, bool add, float* sums);

/// to (columns, rows) = from (rows, columns) transposed
void Transpose(const float* from, size_t rows, size_t columns, float* to);

/// values = keep ? values * scale : 0
void ScaleKept(const uint8_t* keep, size_t count, float scale, float* values);
/// The product is rounded to nearest, ties to even.
void ScaleKept(const uint8_t* keep, size_t count, float scale, Bf16* values);

/// keep[128 * g + i] for the 128 16-bit halves of each group of 64 random words: whether it is
/// below `threshold`. The low halves come first, then the high ones.
void KeepBelow(const uint32_t* words, size_t groups, uint32_t threshold, uint8_t* keep);

/// y = a + b, and then max(0, it) if `relu`. `y` may be `a`.
void AddTwo(const float* a, const float* b, size_t count, bool relu, float* y);

/// gradient = data > 0 ? gradient + more : 0; without `data` just the sum.
void AddMasked(const float* more, const float* data, size_t count, float* gradient);

/// One example in the format of `from`, brought into that of `to`, which has the same shape.
void ConvertFormat(const Tensor& from, const float* x, const Tensor& to, float* y);

/// A group of channels of one example: `pixels` times `block` values (see Tensor).
struct ChannelGroup {
  size_t pixels = 0, block = 0;
};

/// sums(c) = sum over the pixels of x - center(c); squares(c) likewise of (x - center(c))^2. With a
/// center near the mean little is lost by the subtraction of large squares: T. F. Chan, G. H.
/// Golub, R. J. LeVeque, The American Statistician 37 (1983), section 3.
void CenteredSums(
    const float* x, const ChannelGroup& group, const float* center, double* sums, double* squares);

/// A line per channel of a group: scale(c) * x + offset(c).
struct ChannelLines {
  const float *scale = nullptr, *offset = nullptr;
};

/// y = line(x), plus `term` where it is not null, and then max(0, it) if `relu`
void ScaleChannels(
    const float* x, const ChannelGroup& group, const ChannelLines& line, const float* term,
    bool relu, float* y);

/// sums(c) = sum of dy; products(c) = sum of dy * (x - center(c)). With `relu`, a dy counts only
/// where relu(x) > 0: the ReLU behind ScaleChannels let it through.
void GradientSums(
    const float* x, const float* dy, const ChannelGroup& group, const float* center,
    const ChannelLines* relu, double* sums, double* products);

/// dx = a(c) * dy + line(x), where dy is 0 as above with `relu`; and 0 where `mask` and x <= 0.
/// `dx` may be `x`.
void CombineGradients(
    const float* x, const float* dy, const ChannelGroup& group, const float* a,
    const ChannelLines& line, const ChannelLines* relu, bool mask, float* dx);

/// A winner that stands for no pixel of the window.
inline constexpr uint8_t kPoolNone = 255;

/// Max pooling of one example: `from` and `to` say the formats, `input` and `output` the places.
/// `winners` has the output's format. If the input has a ReLU, a window without a value above zero
/// has no winner, so that the way back applies the ReLU on the smaller side. Of bf16 zeros, the one
/// with a sign is the smaller.
void PoolForward(
    const Tensor& from, const Tensor& to, int window, const float* input, float* output,
    uint8_t* winners);
void PoolForward(
    const Tensor& from, const Tensor& to, int window, const Bf16* input, Bf16* output,
    uint8_t* winners);

/// The way back: the gradient of each output goes to its winner, all others get 0.
void PoolBackward(
    const Tensor& from, const Tensor& to, int window, const float* output_gradient,
    const uint8_t* winners, float* input_gradient);
void PoolBackward(
    const Tensor& from, const Tensor& to, int window, const Bf16* output_gradient,
    const uint8_t* winners, Bf16* input_gradient);

/// The weight gradient of a convolution whose input has few channels, such as a network's first
/// one: oneDNN has none for them without AVX-512, or fills the channels up to a whole vector.
///
///   kernel(i, j, c, f) = sum over examples, h, w of
///                        input(s * h + i - before, s * w + j - before, c) * gradient(h, w, f)
///   bias(f) = sum of gradient(h, w, f)
///
/// Sums of a micro-batch are added to those so far. Their order does not depend on the number of
/// OpenMP's threads. Not thread-safe.
class WeightGradient {
 public:
  /// The input's channels come last. Only where CanComputeWeightGradient says so.
  WeightGradient(
      const Shape& input, const Shape& output, int size, int stride, int before_rows,
      int before_columns, int output_block);

  /// Starts a new sum if `first`.
  void Add(const float* input, const float* gradient, int examples, bool first);
  /// kernel (size, size, input channels, filters), bias (filters) or null.
  void Write(float* kernel, float* bias) const;

 private:
  void AddPart(const float* input, const float* gradient, int examples, size_t group, float* sums);
  size_t SumsOfGroup() const;

  Shape input_, output_;
  int size_, stride_, before_rows_, before_columns_, block_;
  size_t groups_;
  FloatArray sums_;  // (part, group, i, c, j, lane), and behind them each group's bias
};

/// Square kernels up to 7, few input channels, and an output in groups of whole vectors.
bool CanComputeWeightGradient(int input_channels, int size, int output_block);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_LAYERS_CPU_KERNELS_H_
