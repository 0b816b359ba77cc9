#ifndef DTRUN_MODELS_GPU_DEVICE_MATH_CUH_
#define DTRUN_MODELS_GPU_DEVICE_MATH_CUH_

#include "gpu/kernel.h"
#include "models/gpu/kernel_args.h"

// Functions that the kernels of this folder share: access to eight values at a time, Philox, and
// sums over a grid. The sums have the same bits in every run.

namespace dtrun::models {

constexpr int kVector = 8;     // values that a thread works on at once
constexpr int kThreads = 256;  // of every block
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// ---- Eight values as floats ---------------------------------------------------------------------

__device__ inline void Load8(const float* from, float* values) {
  const float4 a = reinterpret_cast<const float4*>(from)[0];
  const float4 b = reinterpret_cast<const float4*>(from)[1];
  values[0] = a.x, values[1] = a.y, values[2] = a.z, values[3] = a.w;
  values[4] = b.x, values[5] = b.y, values[6] = b.z, values[7] = b.w;
}

__device__ inline void Store8(const float* values, float* to) {
  reinterpret_cast<float4*>(to)[0] = float4{values[0], values[1], values[2], values[3]};
  reinterpret_cast<float4*>(to)[1] = float4{values[4], values[5], values[6], values[7]};
}

__device__ inline float ToFloat(float value) { return value; }
__device__ inline float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float ToFloat(__half value) { return __half2float(value); }
__device__ inline void FromFloat(float value, float* to) { *to = value; }
__device__ inline void FromFloat(float value, __nv_bfloat16* to) { *to = __float2bfloat16(value); }
__device__ inline void FromFloat(float value, __half* to) { *to = __float2half(value); }

template <typename T>
struct alignas(16) Eight {
  T values[kVector];
};

// Eight values of a 16-bit type are 16 bytes.
template <typename T>
__device__ inline void Load8(const T* from, float* values) {
  const Eight<T> eight = *reinterpret_cast<const Eight<T>*>(from);
  for (int i = 0; i < kVector; ++i) values[i] = ToFloat(eight.values[i]);
}

template <typename T>
__device__ inline void Store8(const float* values, T* to) {
  Eight<T> eight;
  for (int i = 0; i < kVector; ++i) FromFloat(values[i], &eight.values[i]);
  *reinterpret_cast<Eight<T>*>(to) = eight;
}

// ---- Random numbers -----------------------------------------------------------------------------

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

// Returns which of 8 consecutive values of an example dropout keeps, as a bit for each value. The
// lanes of a warp have 32 consecutive octets of one example. The first octet is a multiple of 32.
// All lanes call the function.
//
// A layer's mask is made in groups of 128 values, each from 16 counters. Word (p % 64) / 16 of
// counter p % 16 decides about value p of a group: the word's lower half if p < 64, else its upper
// half. So a lane makes the words of one counter, and the 8 halves decide about 8 values. The lanes
// exchange these decisions by ballot. Octet t of a group has half-word t / 2 of the counters
// 8 * (t % 2) to 8 * (t % 2) + 7.
__device__ inline uint32_t KeptOfOctet(
    const DropoutRule& rule, uint64_t step, uint32_t position, uint32_t first_octet) {
  const uint32_t lane = threadIdx.x % 32;
  const PhiloxWords words = Philox(
      first_octet + lane, position, static_cast<uint32_t>(step), rule.domain, rule.key0, rule.key1);
  const uint32_t octet = lane % 16, first_lane = lane / 16 * 16 + octet % 2 * 8;
  uint32_t kept = 0;
  for (uint32_t half = 0; half < 8; ++half) {
    const uint32_t word = words.word[half % 4];
    const uint32_t draw = half < 4 ? word & 0xFFFFu : word >> 16;
    const uint32_t of_lanes = __ballot_sync(kAllLanes, draw < rule.keep_below);
    if (octet / 2 == half) kept = of_lanes >> first_lane & 0xFFu;
  }
  return kept;
}

// ---- Sums over a grid ---------------------------------------------------------------------------

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

__device__ inline void Add(const float4& from, float4& to) {
  to.x += from.x, to.y += from.y, to.z += from.z, to.w += from.w;
}

/// Adds up four sums of every `parts`-th block from `part` on. The loads bypass the L1 cache,
/// because other blocks have written the sums during this kernel.
__device__ inline float4 SumOfBlocks(
    const float* partials, uint32_t stride, uint32_t quad, uint32_t part, uint32_t parts) {
  float4 sum = {0, 0, 0, 0};
  for (uint32_t block = part; block < gridDim.x; block += parts)
    Add(__ldcg(reinterpret_cast<const float4*>(partials + block * stride) + quad), sum);
  return sum;
}

/// Adds up the partial sums of all blocks: `width` of the `stride` values of each block. A thread
/// adds four sums at a time. If there are enough threads, several threads share four sums and split
/// the blocks. Widths and strides are multiples of 4, and addresses are multiples of 16 bytes. All
/// threads of the last block call it.
__device__ inline void AddPartials(
    const float* partials, uint32_t stride, uint32_t width, float* sums) {
  __shared__ float4 of_parts[kThreads];
  const uint32_t quads = width / 4, parts = kThreads / quads;
  auto* const to = reinterpret_cast<float4*>(sums);
  if (parts < 2) {
    for (uint32_t quad = threadIdx.x; quad < quads; quad += kThreads)
      to[quad] = SumOfBlocks(partials, stride, quad, 0, 1);
    return;
  }
  const uint32_t quad = threadIdx.x % quads, part = threadIdx.x / quads;
  float4 sum = {0, 0, 0, 0};
  if (part < parts) sum = SumOfBlocks(partials, stride, quad, part, parts);
  __syncthreads();
  of_parts[threadIdx.x] = sum;
  __syncthreads();
  if (part != 0) return;
  for (uint32_t other = 1; other < parts; ++other) Add(of_parts[other * quads + quad], sum);
  to[quad] = sum;
}

/// Adds up sums by channel. Each thread has the sums of the 8 channels of octet
/// threadIdx.x % octets. `octets` is 1, 2, 4, ... 32. The last block writes the sums over all
/// blocks to `sums`, (8 * octets). `partials` has room for (blocks, 8 * octets). All threads call
/// it.
__device__ inline void AddByChannel(
    float* values, uint32_t octets, float* partials, uint32_t* counter, float* sums) {
  __shared__ float of_warps[kThreads / 32 * 32 * kVector];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, width = octets * kVector;
  for (int i = 0; i < kVector; ++i) {
    for (uint32_t lanes = octets; lanes < 32; lanes *= 2)
      values[i] += __shfl_xor_sync(kAllLanes, values[i], static_cast<int>(lanes));
  }
  if (lane < octets)
    for (int i = 0; i < kVector; ++i) of_warps[warp * width + lane * kVector + i] = values[i];
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < width; i += kThreads) {
    float sum = 0;
    for (uint32_t w = 0; w < kThreads / 32; ++w) sum += of_warps[w * width + i];
    partials[blockIdx.x * width + i] = sum;
  }
  if (IsLastBlock(counter)) AddPartials(partials, width, width, sums);
}

// Counts one more update and computes its learning rate, as Adam::BeginStep (models/optim/adam.h).
__device__ inline void AdvanceUpdate(const RateRule& rule, StepState& state) {
  ++state.updates;
  double rate = static_cast<double>(state.now.rate);
  if (rule.beta2 > 0) {
    const double t = static_cast<double>(state.updates);
    rate *= sqrt(1 - pow(rule.beta2, t)) / (1 - pow(rule.beta1, t));
  }
  state.update_rate = static_cast<float>(rate);
}

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_GPU_DEVICE_MATH_CUH_
