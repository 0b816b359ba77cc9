// Max pooling in one pass with the operations before and behind it: the bias and the ReLU of the
// convolution before, and dropout. Bias and ReLU follow the maximum, which commutes with both. For
// the backward pass, one byte per output says where its gradient goes. So the convolution's output,
// by far the largest tensor of network C, is written once and read once.

#include "gpu/kernel.h"
#include "models/gpu/device_math.cuh"
#include "models/gpu/kernel_args.h"

namespace dtrun::models {
namespace {

constexpr uint8_t kNowhere = 4;

struct alignas(8) EightBytes {
  uint8_t values[kVector];
};

// Tensors have fewer than 2^31 values, so 32 bits are enough for items. A 64-bit division costs
// half as much as all the other work.
__device__ inline uint32_t FirstOf32Bits() { return static_cast<uint32_t>(gpu::FirstItem()); }
__device__ inline uint32_t StrideOf32Bits() { return static_cast<uint32_t>(gpu::ItemStride()); }

// A warp takes 32 octets of an example at a time, as KeptOfOctet requires.
template <typename T>
__device__ void Pool(const PoolArgs& args) {
  const uint32_t height = args.height / 2, width = args.width / 2;
  const uint32_t per_pixel = args.channels / kVector, octets = height * width * per_pixel;
  const uint32_t turns = (octets + 31) / 32, lane = threadIdx.x % 32;
  const uint64_t in_row = static_cast<uint64_t>(args.width) * args.channels;
  const bool drops = args.winners != nullptr && args.dropout.keep_below < 65536;
  const uint32_t items = args.rows * turns;
  for (uint32_t item = FirstOf32Bits() / 32; item < items; item += StrideOf32Bits() / 32) {
    const uint32_t row = item / turns, first = item % turns * 32, octet = first + lane;
    uint32_t kept = 0xFF;
    if (drops)
      kept = KeptOfOctet(
          args.dropout, args.state->now.step, args.state->now.first_position + row, first);
    if (octet >= octets) continue;
    const uint32_t pixel = octet / per_pixel, channel = octet % per_pixel * kVector;
    const T* const window = static_cast<const T*>(args.inputs) + row * (args.height * in_row) +
                            pixel / width * 2 * in_row + pixel % width * 2 * args.channels +
                            channel;
    float largest[kVector], values[kVector], bias[kVector] = {};
    EightBytes winners = {};
    Load8(window, largest);
    for (int element = 1; element < 4; ++element) {
      Load8(window + element / 2 * in_row + element % 2 * args.channels, values);
      for (int i = 0; i < kVector; ++i) {
        if (!(values[i] > largest[i])) continue;
        largest[i] = values[i];
        winners.values[i] = static_cast<uint8_t>(element);
      }
    }
    if (args.bias != nullptr) Load8(args.bias + channel, bias);
    for (int i = 0; i < kVector; ++i) {
      const float value = largest[i] + bias[i];
      const bool passes = value > 0 && (kept >> i & 1) != 0;
      if (!passes) winners.values[i] = kNowhere;
      largest[i] = value > 0 ? value : 0;
      if (drops) largest[i] = passes ? value * args.dropout.scale : 0;
      if (value != value) largest[i] = value;
    }
    const uint64_t at = (static_cast<uint64_t>(row) * octets + octet) * kVector;
    Store8(largest, static_cast<T*>(args.outputs) + at);
    if (args.winners != nullptr) *reinterpret_cast<EightBytes*>(args.winners + at) = winners;
  }
}

// Goes through the windows, including windows that stick out. The forward pass did not read the
// elements of these, so their gradients are zero. A thread has the same channels in all its
// windows, because the grid's number of threads is a multiple of an output pixel's octets.
template <typename T>
__device__ void PoolGradient(const PoolGradientArgs& args) {
  const uint32_t height = args.height / 2, width = args.width / 2;
  const uint32_t rows = (args.height + 1) / 2, columns = (args.width + 1) / 2;
  const uint32_t per_pixel = args.channels / kVector, windows = rows * columns;
  const uint64_t in_row = static_cast<uint64_t>(args.width) * args.channels;
  const uint32_t channel = threadIdx.x % per_pixel * kVector, items = args.rows * windows;
  float bias[kVector] = {};
  for (uint32_t item = FirstOf32Bits() / per_pixel; item < items;
       item += StrideOf32Bits() / per_pixel) {
    const uint32_t window = item % windows, y = window / columns, x = window % columns;
    const uint64_t row = item / windows;
    const bool counts = y < height && x < width;
    float gradients[kVector] = {};
    EightBytes winners = {};
    if (counts) {
      const uint64_t at = ((row * height + y) * width + x) * args.channels + channel;
      Load8(static_cast<const T*>(args.output_gradients) + at, gradients);
      winners = *reinterpret_cast<const EightBytes*>(args.winners + at);
      for (int i = 0; i < kVector; ++i) {
        gradients[i] = winners.values[i] == kNowhere ? 0 : gradients[i] * args.scale;
        bias[i] += gradients[i];
      }
    }
    T* const to = static_cast<T*>(args.input_gradients) + row * (args.height * in_row) +
                  y * 2 * in_row + x * 2 * args.channels + channel;
    for (uint32_t element = 0; element < 4; ++element) {
      if (2 * y + element / 2 >= args.height || 2 * x + element % 2 >= args.width) continue;
      float of_element[kVector];
      for (int i = 0; i < kVector; ++i)
        of_element[i] = winners.values[i] == element ? gradients[i] : 0;
      Store8(of_element, to + element / 2 * in_row + element % 2 * args.channels);
    }
  }
  if (args.bias_gradient != nullptr)
    AddByChannel(bias, per_pixel, args.partials, args.counter, args.bias_gradient);
}

template <typename T>
__device__ void Dropout(const DropoutArgs& args) {
  const uint32_t octets = args.width / kVector, turns = (octets + 31) / 32;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t items = args.rows * turns;
  for (uint32_t item = FirstOf32Bits() / 32; item < items; item += StrideOf32Bits() / 32) {
    const uint32_t row = item / turns, first = item % turns * 32, octet = first + lane;
    const uint32_t kept = KeptOfOctet(
        args.dropout, args.state->now.step, args.state->now.first_position + row, first);
    if (octet >= octets) continue;
    T* const at =
        static_cast<T*>(args.values) + (static_cast<uint64_t>(row) * octets + octet) * kVector;
    float values[kVector];
    Load8(at, values);
    uint32_t passes = 0;
    for (int i = 0; i < kVector; ++i) {
      values[i] = (kept >> i & 1) != 0 ? values[i] * args.dropout.scale : 0;
      passes |= (values[i] > 0 ? 1u : 0u) << i;
    }
    Store8(values, at);
    if (args.mask != nullptr)
      args.mask[static_cast<uint64_t>(row) * args.mask_bytes + octet] =
          static_cast<uint8_t>(passes);
  }
}

template <typename T>
__device__ void ReluGradient(const ReluGradientArgs& args) {
  const uint32_t octets = args.width / kVector;
  const uint64_t items = static_cast<uint64_t>(args.rows) * octets;
  float bias[kVector] = {};
  for (uint64_t item = gpu::FirstItem(); item < items; item += gpu::ItemStride()) {
    float outputs[kVector], gradients[kVector];
    T* const at = static_cast<T*>(args.gradients) + item * kVector;
    Load8(static_cast<const T*>(args.outputs) + item * kVector, outputs);
    Load8(at, gradients);
    for (int i = 0; i < kVector; ++i) {
      gradients[i] = outputs[i] > 0 ? gradients[i] * args.scale : 0;
      bias[i] += gradients[i];
    }
    Store8(gradients, at);
  }
  AddByChannel(bias, octets, args.partials, args.counter, args.bias_gradient);
}

}  // namespace

DTRUN_KERNEL(dtrun_pool_f32, PoolArgs) { Pool<float>(args); }
DTRUN_KERNEL(dtrun_pool_bf16, PoolArgs) { Pool<__nv_bfloat16>(args); }
DTRUN_KERNEL(dtrun_pool_f16, PoolArgs) { Pool<__half>(args); }
DTRUN_KERNEL(dtrun_pool_gradient_f32, PoolGradientArgs) { PoolGradient<float>(args); }
DTRUN_KERNEL(dtrun_pool_gradient_bf16, PoolGradientArgs) { PoolGradient<__nv_bfloat16>(args); }
DTRUN_KERNEL(dtrun_pool_gradient_f16, PoolGradientArgs) { PoolGradient<__half>(args); }
DTRUN_KERNEL(dtrun_dropout_f32, DropoutArgs) { Dropout<float>(args); }
DTRUN_KERNEL(dtrun_dropout_bf16, DropoutArgs) { Dropout<__nv_bfloat16>(args); }
DTRUN_KERNEL(dtrun_dropout_f16, DropoutArgs) { Dropout<__half>(args); }
DTRUN_KERNEL(dtrun_relu_gradient_f32, ReluGradientArgs) { ReluGradient<float>(args); }
DTRUN_KERNEL(dtrun_relu_gradient_bf16, ReluGradientArgs) { ReluGradient<__nv_bfloat16>(args); }
DTRUN_KERNEL(dtrun_relu_gradient_f16, ReluGradientArgs) { ReluGradient<__half>(args); }

}  // namespace dtrun::models
