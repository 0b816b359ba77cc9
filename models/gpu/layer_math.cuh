#ifndef DTRUN_MODELS_GPU_LAYER_MATH_CUH_
#define DTRUN_MODELS_GPU_LAYER_MATH_CUH_

#include "gpu/kernel.h"
#include "models/gpu/layer_args.h"

// Functions that the kernels of layer_args.h share: access to single values, loops over a grid,
// Philox, and sums of any width. The sums have the same bits in every run.

/// Defines the kernels dtrun_layer_<name>_f32, _bf16 and _f16, which call Function<T>(args).
#define DTRUN_LAYER_KERNELS(name, Args, Function)                                  \
  DTRUN_KERNEL(dtrun_layer_##name##_f32, Args) { Function<float>(args); }          \
  DTRUN_KERNEL(dtrun_layer_##name##_bf16, Args) { Function<__nv_bfloat16>(args); } \
  DTRUN_KERNEL(dtrun_layer_##name##_f16, Args) { Function<__half>(args); }         \
  static_assert(true)

namespace dtrun::models {

constexpr int kThreads = 256;  // of every block
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

__device__ inline float ToFloat(float value) { return value; }
__device__ inline float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float ToFloat(__half value) { return __half2float(value); }
__device__ inline void FromFloat(float value, float* to) { *to = value; }
__device__ inline void FromFloat(float value, __nv_bfloat16* to) { *to = __float2bfloat16(value); }
__device__ inline void FromFloat(float value, __half* to) { *to = __float2half(value); }

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

/// 16 bytes of values, which a thread reads or writes at once.
template <typename T>
struct alignas(16) Pack {
  static constexpr uint32_t kValues = 16 / sizeof(T);
  T values[kValues];
};

/// to(i) = function(i, a(i), b(i)) for all i below `count`, with 0 for b(i) if `b` is null. `to` may
/// be `a` or `b`. Values travel in packs if the arrays are aligned to packs.
template <typename T, typename Function>
__device__ inline void Map(
    uint32_t count, const void* a, const void* b, void* to, const Function& function) {
  constexpr uint32_t kValues = Pack<T>::kValues;
  const bool is_aligned = ((reinterpret_cast<uint64_t>(a) | reinterpret_cast<uint64_t>(b) |
                            reinterpret_cast<uint64_t>(to)) %
                           sizeof(Pack<T>)) == 0;
  const uint32_t packs = is_aligned ? count / kValues : 0;
  ForEach(packs, [&](uint32_t pack) {
    Pack<T> x = static_cast<const Pack<T>*>(a)[pack], y = {};
    if (b != nullptr) y = static_cast<const Pack<T>*>(b)[pack];
    for (uint32_t k = 0; k < kValues; ++k) {
      const float second = b == nullptr ? 0 : ToFloat(y.values[k]);
      FromFloat(function(pack * kValues + k, ToFloat(x.values[k]), second), &x.values[k]);
    }
    static_cast<Pack<T>*>(to)[pack] = x;
  });
  ForEach(count - packs * kValues, [&](uint32_t item) {
    const uint32_t i = packs * kValues + item;
    Store<T>(function(i, Load<T>(a, i), b == nullptr ? 0 : Load<T>(b, i)), to, i);
  });
}

/// ForEach for flat arrays, which may be longer.
template <typename Body>
__device__ inline void ForEachOfArray(uint64_t count, const Body& body) {
  for (uint64_t i = gpu::FirstItem(); i < count; i += gpu::ItemStride()) body(i);
}

struct PhiloxWords {
  uint32_t word[4];
};

// Philox4x32-10, as in models/random/philox.h, which names its source.
__device__ inline PhiloxWords Philox(
    uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * c0, product1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(product0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

template <typename T>
__device__ inline T SumOfWarp(T value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(kAllLanes, value, lanes);
  return value;
}

/// Returns the sum over the threads of the block, in thread 0. All threads of the block call it.
template <typename T>
__device__ inline T SumOfBlock(T value) {
  __shared__ T sums[kThreads / 32];
  value = SumOfWarp(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  T sum = 0;
  if (threadIdx.x == 0)
    for (int warp = 0; warp < kThreads / 32; ++warp) sum += sums[warp];
  return sum;
}

/// Whether this block is the last block of the grid that calls this function. The last block can
/// read all values that the other blocks wrote before their calls. All threads of a block call it.
/// Leaves the counter at 0.
__device__ inline bool IsLastBlock(uint32_t* counter) {
  __shared__ uint32_t last[1];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last[0] = atomicAdd(counter, 1u) + 1 == gridDim.x ? 1u : 0u;
    if (last[0] != 0) *counter = 0;
    __threadfence();
  }
  __syncthreads();
  return last[0] != 0;
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
