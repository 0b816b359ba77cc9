#ifndef DTRUN_MODELS_LAYERS_ADD_KERNELS_H_
#define DTRUN_MODELS_LAYERS_ADD_KERNELS_H_

#include <cstddef>

#include "models/layers/tensor.h"

namespace dtrun::models {

/// y = a + b, and then max(0, it) if `relu`. `y` may be `a`.
void AddTwo(const float* a, const float* b, size_t count, bool relu, float* y);

/// gradient = data > 0 ? gradient + more : 0; without `data` just the sum.
void AddMasked(const float* more, const float* data, size_t count, float* gradient);

/// One example in the format of `from`, brought into that of `to`, which has the same shape.
void ConvertFormat(const Tensor& from, const float* x, const Tensor& to, float* y);

}  // namespace dtrun::models

#endif
