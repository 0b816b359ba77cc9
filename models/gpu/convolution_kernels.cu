// The first convolution. With one input channel, an output needs only 9 products, so matrix units
// do not help. Most of the time goes into writing the outputs and reading their gradients. So the
// forward and the backward kernel each make one pass over memory and keep all else in registers. A
// thread has 8 filters. The threads of a block walk over the pixels of an image in shared memory.
// The backward kernel needs only one bit of each output (the mask).

#include "gpu/kernel.h"
#include "models/gpu/device_math.cuh"
#include "models/gpu/kernel_args.h"

namespace dtrun::models {
namespace {

constexpr int kTaps = 9;

template <typename T>
__device__ void LoadImage(const T* image, uint32_t pixels, float* shared) {
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < pixels; i += kThreads) shared[i] = ToFloat(image[i]);
  __syncthreads();
}

// The position of a thread among the outputs of an image. `corner` is the first of the 3 x 3 inputs
// of this output. A thread takes every `step`-th output. A row has two fewer outputs than inputs.
class Walk {
 public:
  __device__ Walk(uint32_t first, uint32_t step, uint32_t width)
      : output(first),
        corner(first / (width - 2) * width + first % (width - 2)),
        columns_(width - 2),
        step_(step),
        corner_step_(step / columns_ * width + step % columns_),
        x_step_(step % columns_),
        x_(first % columns_) {}

  __device__ void Advance() {
    output += step_;
    corner += corner_step_;
    x_ += x_step_;
    if (x_ < columns_) return;
    x_ -= columns_;
    corner += 2;
  }

  uint32_t output, corner;

 private:
  uint32_t columns_, step_, corner_step_, x_step_, x_;
};

__device__ inline void LoadTaps(const float* image, uint32_t width, uint32_t corner, float* taps) {
  for (uint32_t i = 0; i < 3; ++i)
    for (uint32_t j = 0; j < 3; ++j) taps[3 * i + j] = image[corner + i * width + j];
}

template <typename T>
__device__ void FirstConvolution(const FirstConvolutionArgs& args) {
  float* const image = gpu::SharedMemory<float>();
  const uint32_t octets = args.filters / kVector, octet = threadIdx.x % octets;
  const uint32_t outputs = (args.height - 2) * (args.width - 2);
  const Walk begin(threadIdx.x / octets, kThreads / octets, args.width);
  float kernel[kTaps][kVector], bias[kVector];
  for (int tap = 0; tap < kTaps; ++tap)
    Load8(args.kernel + tap * args.filters + octet * kVector, kernel[tap]);
  Load8(args.bias + octet * kVector, bias);
  for (uint32_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const uint64_t pixels = static_cast<uint64_t>(args.height) * args.width;
    LoadImage(
        static_cast<const T*>(args.inputs) + row * pixels, static_cast<uint32_t>(pixels), image);
    const uint64_t first = static_cast<uint64_t>(row) * outputs * octets + octet;
    for (Walk at = begin; at.output < outputs; at.Advance()) {
      float taps[kTaps], sums[kVector];
      LoadTaps(image, args.width, at.corner, taps);
      for (int f = 0; f < kVector; ++f) sums[f] = bias[f];
      for (int tap = 0; tap < kTaps; ++tap)
        for (int f = 0; f < kVector; ++f) sums[f] += taps[tap] * kernel[tap][f];
      uint32_t above = 0;
      for (int f = 0; f < kVector; ++f) {
        above |= (sums[f] > 0 ? 1u : 0u) << f;
        sums[f] = sums[f] > 0 ? sums[f] : 0;
      }
      const uint64_t to = first + static_cast<uint64_t>(at.output) * octets;
      Store8(sums, static_cast<T*>(args.outputs) + to * kVector);
      if (args.mask != nullptr) args.mask[to] = static_cast<uint8_t>(above);
    }
  }
}

// Each thread first sums over its pixels. Then the sums of threads with the same filters are added,
// first in a warp, then in the block. The last block adds the sums of all blocks. A thread loads
// the gradients of its next pixel before it adds the gradients of the current pixel.
template <typename T>
__device__ void FirstConvolutionGradient(const FirstConvolutionGradientArgs& args) {
  float* const image = gpu::SharedMemory<float>();
  const uint32_t octets = args.filters / kVector, octet = threadIdx.x % octets;
  const uint32_t outputs = (args.height - 2) * (args.width - 2);
  const Walk begin(threadIdx.x / octets, kThreads / octets, args.width);
  const auto* const all_gradients = static_cast<const Eight<T>*>(args.output_gradients);
  float sums[kTaps + 1][kVector] = {};
  for (uint32_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const uint64_t pixels = static_cast<uint64_t>(args.height) * args.width;
    const uint64_t first = static_cast<uint64_t>(row) * outputs * octets + octet;
    const auto gradients_at = [&](const Walk& at) {
      return at.output < outputs ? all_gradients[first + static_cast<uint64_t>(at.output) * octets]
                                 : Eight<T>();
    };
    const auto mask_at = [&](const Walk& at) -> uint32_t {
      if (args.mask == nullptr || at.output >= outputs) return 0xFF;
      return args.mask[first + static_cast<uint64_t>(at.output) * octets];
    };
    Eight<T> next = gradients_at(begin);
    uint32_t next_mask = mask_at(begin);
    LoadImage(
        static_cast<const T*>(args.inputs) + row * pixels, static_cast<uint32_t>(pixels), image);
    for (Walk at = begin; at.output < outputs;) {
      const Eight<T> gradients = next;
      const uint32_t passes = next_mask, corner = at.corner;
      at.Advance();
      next = gradients_at(at);
      next_mask = mask_at(at);
      float taps[kTaps];
      LoadTaps(image, args.width, corner, taps);
      for (int f = 0; f < kVector; ++f) {
        const float gradient = (passes >> f & 1) != 0 ? ToFloat(gradients.values[f]) : 0;
        for (int tap = 0; tap < kTaps; ++tap) sums[tap][f] += taps[tap] * gradient;
        sums[kTaps][f] += gradient;
      }
    }
  }
  // All taps use the same 8 KiB of shared memory, one tap after the other.
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
DTRUN_BOUNDED_KERNEL(dtrun_first_convolution_gradient_f32, FirstConvolutionGradientArgs, 256, 2) {
  FirstConvolutionGradient<float>(args);
}
DTRUN_BOUNDED_KERNEL(dtrun_first_convolution_gradient_bf16, FirstConvolutionGradientArgs, 256, 2) {
  FirstConvolutionGradient<__nv_bfloat16>(args);
}
DTRUN_BOUNDED_KERNEL(dtrun_first_convolution_gradient_f16, FirstConvolutionGradientArgs, 256, 2) {
  FirstConvolutionGradient<__half>(args);
}
DTRUN_KERNEL(dtrun_widen_bf16, WidenArgs) { Widen<__nv_bfloat16>(args); }
DTRUN_KERNEL(dtrun_widen_f16, WidenArgs) { Widen<__half>(args); }

}  // namespace dtrun::models
