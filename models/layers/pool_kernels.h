#ifndef DTRUN_MODELS_LAYERS_POOL_KERNELS_H_
#define DTRUN_MODELS_LAYERS_POOL_KERNELS_H_

#include <cstdint>

#include "models/layers/tensor.h"

namespace dtrun::models {

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

}  // namespace dtrun::models

#endif
