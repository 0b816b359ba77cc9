#ifndef DTRUN_MODELS_GPU_LAYER_MATH_CUH_
#define DTRUN_MODELS_GPU_LAYER_MATH_CUH_

#include "gpu/kernel.h"
#include "models/gpu/device_math.cuh"
#include "models/gpu/layer_args.h"

// Functions that the kernels of layer_args.h share: access to single values, loops over a grid, and
// sums of any width.

/// Defines the kernels dtrun_layer_<name>_f32, _bf16 and _f16, which call Function<T>(args).
#define DTRUN_LAYER_KERNELS(name, Args, Function)                                  \
  DTRUN_KERNEL(dtrun_layer_##name##_f32, Args) { Function<float>(args); }          \
  DTRUN_KERNEL(dtrun_layer_##name##_bf16, Args) { Function<__nv_bfloat16>(args); } \
  DTRUN_KERNEL(dtrun_layer_##name##_f16, Args) { Function<__half>(args); }         \
  static_assert(true)

namespace dtrun::models {

template <typename T>
__device__ inline float Load(const void* from, uint32_t at) {
  return ToFloat(static_cast<const T*>(from)[at]);
}

template <typename T>
__device__ inline void Store(float value, void* to, uint32_t at) {
  FromFloat(value, static_cast<T*>(to) + at);
}

__device__ inline float Relu(float value) { return value < 0 ? 0 : value; }

/// Calls body(i) for all i below `count`, over the threads of the grid. Activations have fewer than
/// 2^31 values, so 32 bits are enough. A 64-bit division costs several times as much.
template <typename Body>
__device__ inline void ForEach(uint32_t count, const Body& body) {
  const auto stride = static_cast<uint32_t>(gpu::ItemStride());
  for (auto i = static_cast<uint32_t>(gpu::FirstItem()); i < count; i += stride) body(i);
}

/// The same for flat arrays, which may be longer.
template <typename Body>
__device__ inline void ForEachOfArray(uint64_t count, const Body& body) {
  for (uint64_t i = gpu::FirstItem(); i < count; i += gpu::ItemStride()) body(i);
}

constexpr uint32_t kWarps = kThreads / 32;  // of every block

/// Adds up `kSums` values over the warps of a block, lane by lane. The sums are valid in warp 0.
/// All threads of the block call it.
template <int kSums>
__device__ inline void AddWarps(double* sums) {
  __shared__ double of_warps[kSums * kThreads];
  __syncthreads();
  for (int k = 0; k < kSums; ++k) of_warps[k * kThreads + threadIdx.x] = sums[k];
  __syncthreads();
  if (threadIdx.x >= 32) return;
  for (int k = 0; k < kSums; ++k) {
    sums[k] = 0;
    for (uint32_t warp = 0; warp < kWarps; ++warp)
      sums[k] += of_warps[k * kThreads + warp * 32 + threadIdx.x];
  }
}

/// Adds up `kSums` terms for each column of a matrix (rows, columns). add(index, column, sums) adds
/// the terms of one element, in f32. The last block calls finish(column, sums) for each column. A
/// block takes the columns of tile blockIdx.y, one per lane. Its warps share the rows with the
/// warps of the other blocks. After every 32 terms, a thread moves its sum to f64, so the error is
/// a few units in the last place of a float. `partials` has room for (blocks in x, kSums, columns).
template <int kSums, typename AddTerms, typename Finish>
__device__ inline void SumColumns(
    uint32_t rows, uint32_t columns, double* partials, uint32_t* counters, const AddTerms& add,
    const Finish& finish) {
  constexpr int kTermsInF32 = 32;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t column = blockIdx.y * kChannelTile + threadIdx.x % 32;
  const bool counts = column < columns;
  double sums[kSums] = {};
  for (uint32_t row = blockIdx.x * kWarps + warp; counts && row < rows;) {
    float few[kSums] = {};
    for (int i = 0; i < kTermsInF32 && row < rows; ++i, row += gridDim.x * kWarps)
      add(row * columns + column, column, few);
    for (int k = 0; k < kSums; ++k) sums[k] += static_cast<double>(few[k]);
  }
  AddWarps<kSums>(sums);
  for (int k = 0; k < kSums && warp == 0 && counts; ++k)
    partials[(blockIdx.x * kSums + k) * columns + column] = sums[k];
  if (!IsLastBlock(counters + blockIdx.y)) return;
  for (int k = 0; k < kSums; ++k) {
    sums[k] = 0;
    for (uint32_t block = warp; counts && block < gridDim.x; block += kWarps)
      sums[k] += __ldcg(partials + (block * kSums + k) * columns + column);
  }
  AddWarps<kSums>(sums);
  if (warp == 0 && counts) finish(column, sums);
}

/// Adds up `kSums` values over all threads of the grid. One thread of the last block calls
/// finish(sums). `partials` has room for (blocks, kSums).
template <int kSums, typename Finish>
__device__ inline void SumGrid(
    const double* values, double* partials, uint32_t* counter, const Finish& finish) {
  for (int k = 0; k < kSums; ++k) {
    const double sum = SumOfBlock(values[k]);
    if (threadIdx.x == 0) partials[blockIdx.x * kSums + k] = sum;
  }
  if (!IsLastBlock(counter)) return;
  double sums[kSums] = {};
  for (int k = 0; k < kSums; ++k) {
    for (uint32_t block = threadIdx.x; block < gridDim.x; block += kThreads)
      sums[k] += __ldcg(partials + block * kSums + k);
    sums[k] = SumOfBlock(sums[k]);
  }
  if (threadIdx.x == 0) finish(sums);
}

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_GPU_LAYER_MATH_CUH_
