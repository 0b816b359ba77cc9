#include "models/layers/add_kernels.h"

#include <algorithm>

#include "models/function_clones.h"

namespace dtrun::models {

DTRUN_KERNEL void AddTwo(const float* a, const float* b, size_t count, bool relu, float* y) {
  // So low that no value is lower, where there is no ReLU.
  const float least = relu ? 0.0f : -__builtin_inff();
  for (size_t i = 0; i < count; ++i) {
    const float value = a[i] + b[i];
    y[i] = value < least ? least : value;
  }
}

DTRUN_KERNEL void AddMasked(
    const float* __restrict more, const float* __restrict data, size_t count,
    float* __restrict gradient) {
  if (data == nullptr) {
    for (size_t i = 0; i < count; ++i) gradient[i] += more[i];
    return;
  }
  for (size_t i = 0; i < count; ++i) gradient[i] = data[i] > 0 ? gradient[i] + more[i] : 0;
}

// Channel by channel: only shapes that oneDNN has no common format for come here.
void ConvertFormat(const Tensor& from, const float* x, const Tensor& to, float* y) {
  const auto channels = size_t(to.shape.channels), pixels = to.shape.pixels();
  const auto from_block = size_t(from.block), to_block = size_t(to.block);
  std::fill_n(y, to.stride(), 0.0f);
  for (size_t c = 0; c < channels; ++c) {
    const float* in = x + c / from_block * pixels * from_block + c % from_block;
    float* out = y + c / to_block * pixels * to_block + c % to_block;
    for (size_t p = 0; p < pixels; ++p) out[p * to_block] = in[p * from_block];
  }
}

}  // namespace dtrun::models
