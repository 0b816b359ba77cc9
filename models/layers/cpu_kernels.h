#ifndef DTRUN_MODELS_LAYERS_CPU_KERNELS_H_
#define DTRUN_MODELS_LAYERS_CPU_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "models/layers/tensor.h"

namespace dtrun::models {

/// Element-wise kernels that oneDNN has no primitive for, or for which oneDNN needs several passes.
/// Each kernel runs on the calling thread, on memory of the caller.

/// to += from
void Add(const float* from, size_t count, float* to);

/// to += factor * from
void AddScaled(const float* from, size_t count, float factor, float* to);

/// Sums in double precision.
double SumOfSquares(const float* values, size_t count);

/// values = max(0, values)
void ApplyRelu(size_t count, float* values);

/// gradient = activation > 0 ? gradient : 0
void MaskByRelu(const float* activation, size_t count, float* gradient);
void MaskByRelu(const Bf16* activation, size_t count, Bf16* gradient);
/// Masks the gradient of `tensor` for the first `examples` examples.
void MaskByRelu(const Tensor& tensor, size_t examples);

/// values(row) += bias for each of `rows` rows; then max(0, values) if `relu`.
void AddBias(const float* bias, size_t rows, size_t count, bool relu, float* values);

/// sums = (add ? sums : 0) + the sum of the rows of `values`, added in row order
void SumRows(const float* values, size_t rows, size_t count, bool add, float* sums);

/// to (columns, rows) = from (rows, columns) transposed
void Transpose(const float* from, size_t rows, size_t columns, float* to);

/// values = keep ? values * scale : 0
void ScaleKept(const uint8_t* keep, size_t count, float scale, float* values);
/// The product is rounded to nearest, ties to even.
void ScaleKept(const uint8_t* keep, size_t count, float scale, Bf16* values);

/// Sets keep[128 * g + i] for the 128 16-bit halves of each group g of 64 random words: 1 if the
/// half is below `threshold`, else 0. The low halves come first, then the high halves.
void KeepBelow(const uint32_t* words, size_t groups, uint32_t threshold, uint8_t* keep);

/// y = a + b; then max(0, y) if `relu`. `y` may be `a`.
void AddTwo(const float* a, const float* b, size_t count, bool relu, float* y);

/// gradient = data > 0 ? gradient + more : 0. If `data` is null, gradient += more.
void AddMasked(const float* more, const float* data, size_t count, float* gradient);

/// Converts one example from the format of `from` to the format of `to`. Both have the same shape.
void ConvertFormat(const Tensor& from, const float* x, const Tensor& to, float* y);

/// A group of channels of one example: `pixels` times `block` values (see Tensor).
struct ChannelGroup {
  size_t pixels = 0, block = 0;
};

/// sums(c) = sum over the pixels of x - center(c); squares(c) = sum of (x - center(c))^2. If the
/// center is near the mean, the subtraction of large squares loses little precision: T. F. Chan, G.
/// H. Golub, R. J. LeVeque, The American Statistician 37 (1983), section 3.
void CenteredSums(
    const float* x, const ChannelGroup& group, const float* center, double* sums, double* squares);

/// A linear function per channel of a group: scale(c) * x + offset(c).
struct ChannelLines {
  const float *scale = nullptr, *offset = nullptr;
};

/// y = line(x); plus `term`, if it is not null; then max(0, y) if `relu`.
void ScaleChannels(
    const float* x, const ChannelGroup& group, const ChannelLines& line, const float* term,
    bool relu, float* y);

/// sums(c) = sum of dy; products(c) = sum of dy * (x - center(c)). If `relu` is not null, dy counts
/// only where relu(x) > 0, that is, where the ReLU of ScaleChannels did not clip.
void GradientSums(
    const float* x, const float* dy, const ChannelGroup& group, const float* center,
    const ChannelLines* relu, double* sums, double* products);

/// dx = a(c) * dy + line(x). If `relu` is not null, dy is masked as in GradientSums. If `mask` is
/// set, dx is 0 where x <= 0. `dx` may be `x`.
void CombineGradients(
    const float* x, const float* dy, const ChannelGroup& group, const float* a,
    const ChannelLines& line, const ChannelLines* relu, bool mask, float* dx);

/// Winner of a window that passes its gradient to none of its pixels.
inline constexpr uint8_t kPoolNone = 255;

/// Max pooling of one example. `from` and `to` describe the formats of `input` and `output`;
/// `winners` has the output's format. If the input has a ReLU, a window without a value above zero
/// gets kPoolNone. The backward pass then applies the ReLU on the output, which is smaller. In
/// bf16, -0 is less than +0.
void PoolForward(
    const Tensor& from, const Tensor& to, int window, const float* input, float* output,
    uint8_t* winners);
void PoolForward(
    const Tensor& from, const Tensor& to, int window, const Bf16* input, Bf16* output,
    uint8_t* winners);

/// Backward pass: the gradient of each output goes to its winner. All other pixels get 0.
void PoolBackward(
    const Tensor& from, const Tensor& to, int window, const float* output_gradient,
    const uint8_t* winners, float* input_gradient);
void PoolBackward(
    const Tensor& from, const Tensor& to, int window, const Bf16* output_gradient,
    const uint8_t* winners, Bf16* input_gradient);

/// The weight gradient of a convolution whose input has few channels, for example a network's first
/// convolution. Without AVX-512, oneDNN has no fast implementation for it, or pads the channels to
/// a whole vector.
///
///   kernel(i, j, c, f) = sum over examples, h, w of
///                        input(s * h + i - before, s * w + j - before, c) * gradient(h, w, f)
///   bias(f) = sum of gradient(h, w, f)
///
/// The sums accumulate over micro-batches. The order of summation does not depend on the number of
/// OpenMP threads. Not thread-safe.
class WeightGradient {
 public:
  /// The input is in the plain format. Requires CanComputeWeightGradient.
  WeightGradient(
      const Shape& input, const Shape& output, int size, int stride, int before_rows,
      int before_columns, int output_block);

  /// Adds the sums of a micro-batch. If `first`, starts from zero.
  void Add(const float* input, const float* gradient, int examples, bool first);
  /// Writes kernel (size, size, input channels, filters) and bias (filters). `bias` may be null.
  void Write(float* kernel, float* bias) const;

 private:
  void AddPart(const float* input, const float* gradient, int examples, size_t group, float* sums);
  size_t SumsOfGroup() const;

  Shape input_, output_;
  int size_, stride_, before_rows_, before_columns_, block_;
  size_t groups_;
  FloatArray sums_;  // (part, group, i, c, j, lane); then the bias of the group
};

/// True for square kernels up to 7, at most 4 input channels, and an `output_block` that is a
/// multiple of 8.
bool CanComputeWeightGradient(int input_channels, int size, int output_block);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_LAYERS_CPU_KERNELS_H_
