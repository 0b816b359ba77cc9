// The first convolution. With one input channel there is nothing for a matrix unit to do: 9
// products per output, and what costs time is to write the outputs, and to read them and their
// gradients again. So each does it in one pass over memory, with everything else in registers: a
// thread has 8 filters, and the threads of a block go through the pixels of an image, which lies in
// shared memory.

#include "gpu/kernel.h"
#include "models/gpu/convolution_kernels.h"
#include "models/gpu/device_math.cuh"

namespace dtrun::models {
namespace {

constexpr int kTaps = 9;

template <typename T>
__device__ void LoadImage(const T* image, uint32_t pixels, float* shared) {
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < pixels; i += kThreads) shared[i] = ToFloat(image[i]);
  __syncthreads();
}

// The inputs that the output at (y, x) is made of.
__device__ inline void LoadTaps(
    const float* image, uint32_t width, uint32_t y, uint32_t x, float* taps) {
  for (uint32_t i = 0; i < 3; ++i)
    for (uint32_t j = 0; j < 3; ++j) taps[3 * i + j] = image[(y + i) * width + x + j];
}

template <typename T>
__device__ void FirstConvolution(const FirstConvolutionArgs& args) {
  float* const image = gpu::SharedMemory<float>();
  const uint32_t octets = args.filters / kVector, filter = threadIdx.x % octets * kVector;
  const uint32_t columns = args.width - 2, outputs = (args.height - 2) * columns;
  float kernel[kTaps][kVector], bias[kVector];
  for (int tap = 0; tap < kTaps; ++tap)
    Load8(args.kernel + tap * args.filters + filter, kernel[tap]);
  Load8(args.bias + filter, bias);
  for (uint32_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const uint64_t pixels = static_cast<uint64_t>(args.height) * args.width;
    LoadImage(
        static_cast<const T*>(args.inputs) + row * pixels, static_cast<uint32_t>(pixels), image);
    T* const to =
        static_cast<T*>(args.outputs) + static_cast<uint64_t>(row) * outputs * args.filters;
    for (uint32_t p = threadIdx.x / octets; p < outputs; p += kThreads / octets) {
      float taps[kTaps], sums[kVector];
      LoadTaps(image, args.width, p / columns, p % columns, taps);
      for (int f = 0; f < kVector; ++f) sums[f] = bias[f];
      for (int tap = 0; tap < kTaps; ++tap)
        for (int f = 0; f < kVector; ++f) sums[f] += taps[tap] * kernel[tap][f];
      for (int f = 0; f < kVector; ++f) sums[f] = sums[f] > 0 ? sums[f] : 0;
      Store8(sums, to + static_cast<uint64_t>(p) * args.filters + filter);
    }
  }
}

// The sums of a thread over its pixels; then those of the threads with the same filters, first in a
// warp and then in the block; then those of the blocks.
template <typename T>
__device__ void FirstConvolutionGradient(const FirstConvolutionGradientArgs& args) {
  float* const image = gpu::SharedMemory<float>();
  const uint32_t octets = args.filters / kVector, filter = threadIdx.x % octets * kVector;
  const uint32_t columns = args.width - 2, outputs = (args.height - 2) * columns;
  float sums[kTaps + 1][kVector] = {};
  for (uint32_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const uint64_t pixels = static_cast<uint64_t>(args.height) * args.width;
    LoadImage(
        static_cast<const T*>(args.inputs) + row * pixels, static_cast<uint32_t>(pixels), image);
    const uint64_t first = static_cast<uint64_t>(row) * outputs * args.filters + filter;
    for (uint32_t p = threadIdx.x / octets; p < outputs; p += kThreads / octets) {
      const uint64_t at = first + static_cast<uint64_t>(p) * args.filters;
      float gradients[kVector], taps[kTaps];
      Load8(static_cast<const T*>(args.output_gradients) + at, gradients);
      if (args.outputs != nullptr) {
        float values[kVector];
        Load8(static_cast<const T*>(args.outputs) + at, values);
        for (int f = 0; f < kVector; ++f) gradients[f] = values[f] > 0 ? gradients[f] : 0;
      }
      LoadTaps(image, args.width, p / columns, p % columns, taps);
      for (int f = 0; f < kVector; ++f) {
        for (int tap = 0; tap < kTaps; ++tap) sums[tap][f] += taps[tap] * gradients[f];
        sums[kTaps][f] += gradients[f];
      }
    }
  }
  // One tap after the other, through the same 8 KiB of shared memory.
  __shared__ float of_warps[kThreads / 32 * 32 * kVector];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, width = args.filters;
  const uint32_t all = (kTaps + 1) * width;
  for (int tap = 0; tap <= kTaps; ++tap) {
    for (int f = 0; f < kVector; ++f)
      for (uint32_t lanes = octets; lanes < 32; lanes *= 2)
        sums[tap][f] += __shfl_xor_sync(kAllLanes, sums[tap][f], static_cast<int>(lanes));
    __syncthreads();
    if (lane < octets)
      for (int f = 0; f < kVector; ++f) of_warps[warp * width + lane * kVector + f] = sums[tap][f];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < width; i += kThreads) {
      float sum = 0;
      for (uint32_t w = 0; w < kThreads / 32; ++w) sum += of_warps[w * width + i];
      args.partials[blockIdx.x * all + tap * width + i] = sum;
    }
  }
  if (!IsLastBlock(args.counter)) return;
  AddPartials(args.partials, all, kTaps * width, args.kernel_gradient);
  AddPartials(args.partials + kTaps * width, all, width, args.bias_gradient);
}

template <typename T>
__device__ void Widen(const WidenArgs& args) {
  for (uint64_t i = gpu::FirstItem(); i < args.count / kVector; i += gpu::ItemStride()) {
    float values[kVector];
    Load8(static_cast<const T*>(args.from) + i * kVector, values);
    Store8(values, args.to + i * kVector);
  }
}

}  // namespace

DTRUN_BOUNDED_KERNEL(dtrun_first_convolution_f32, FirstConvolutionArgs, 256, 2) {
  FirstConvolution<float>(args);
}
DTRUN_BOUNDED_KERNEL(dtrun_first_convolution_bf16, FirstConvolutionArgs, 256, 2) {
  FirstConvolution<__nv_bfloat16>(args);
}
DTRUN_BOUNDED_KERNEL(dtrun_first_convolution_f16, FirstConvolutionArgs, 256, 2) {
  FirstConvolution<__half>(args);
}
DTRUN_BOUNDED_KERNEL(dtrun_first_convolution_gradient_f32, FirstConvolutionGradientArgs, 256, 1) {
  FirstConvolutionGradient<float>(args);
}
DTRUN_BOUNDED_KERNEL(dtrun_first_convolution_gradient_bf16, FirstConvolutionGradientArgs, 256, 1) {
  FirstConvolutionGradient<__nv_bfloat16>(args);
}
DTRUN_BOUNDED_KERNEL(dtrun_first_convolution_gradient_f16, FirstConvolutionGradientArgs, 256, 1) {
  FirstConvolutionGradient<__half>(args);
}
DTRUN_KERNEL(dtrun_widen_bf16, WidenArgs) { Widen<__nv_bfloat16>(args); }
DTRUN_KERNEL(dtrun_widen_f16, WidenArgs) { Widen<__half>(args); }

}  // namespace dtrun::models
