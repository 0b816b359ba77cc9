#ifndef DTRUN_TESTS_GPU_SIMULATOR_DEVICE_CODE_H_
#define DTRUN_TESTS_GPU_SIMULATOR_DEVICE_CODE_H_

// Replaces gpu/kernel.h when a .cu file is compiled for the CPU. The compiler includes this file
// first (simulated_kernels.bzl), and its include guard makes gpu/kernel.h empty.
#define DTRUN_GPU_KERNEL_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_functions.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/gpu_simulator/block.h"

#define DTRUN_KERNEL(name, Args)                                \
  static void name##_body(const Args& args);                    \
  static void name##_call(void** parameters) {                  \
    /* On a GPU, each thread has its own constant copy. */      \
    name##_body(*static_cast<const Args*>(parameters[0]));      \
  }                                                             \
  static const dtrun::gpu_simulator::Registration name##_known( \
      #name, {&name##_call, sizeof(Args)});                     \
  static void name##_body([[maybe_unused]] const Args& args)

// All threads of a block run on one system thread, so a thread_local variable is shared by a block.
#undef __shared__
#define __shared__ static thread_local

#define threadIdx (dtrun::gpu_simulator::Here().thread)
#define blockIdx (dtrun::gpu_simulator::Here().block)
#define blockDim (dtrun::gpu_simulator::Here().block_size)
#define gridDim (dtrun::gpu_simulator::Here().grid)

inline void __syncthreads() { dtrun::gpu_simulator::SyncBlock(); }
inline void __syncwarp(unsigned = 0xFFFFFFFFu) { dtrun::gpu_simulator::SyncWarp(); }
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __nanosleep(unsigned) { dtrun::gpu_simulator::Yield(); }

namespace dtrun::gpu_simulator {

template <typename T>
T FromLane(T value, unsigned lane) {
  static_assert(sizeof(T) <= 8);
  T result;
  Exchange(&value, &result, sizeof value, lane);
  return result;
}

// Reads from `lane` within a group of `width` lanes. A lane outside the group gives the thread's
// own value.
template <typename T>
T FromLaneOf(T value, int64_t lane, int width) {
  const int64_t mine = Here().thread.x % 32, first = mine / width * width;
  const bool inside = lane >= first && lane < first + width;
  return FromLane(value, static_cast<unsigned>(inside ? lane : mine));
}

}  // namespace dtrun::gpu_simulator

template <typename T>
T __shfl_sync(unsigned, T value, int lane, int width = 32) {
  const int first = static_cast<int>(threadIdx.x % 32) / width * width;
  return dtrun::gpu_simulator::FromLane(value, static_cast<unsigned>(first + (lane & (width - 1))));
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int lanes, int width = 32) {
  return dtrun::gpu_simulator::FromLaneOf(
      value, (threadIdx.x % 32) ^ static_cast<unsigned>(lanes), width);
}
template <typename T>
T __shfl_down_sync(unsigned, T value, unsigned lanes, int width = 32) {
  return dtrun::gpu_simulator::FromLaneOf(value, int64_t{threadIdx.x % 32} + lanes, width);
}
template <typename T>
T __shfl_up_sync(unsigned, T value, unsigned lanes, int width = 32) {
  return dtrun::gpu_simulator::FromLaneOf(value, int64_t{threadIdx.x % 32} - lanes, width);
}
inline unsigned __ballot_sync(unsigned, int yes) { return dtrun::gpu_simulator::Ballot(yes != 0); }
inline int __any_sync(unsigned mask, int yes) { return __ballot_sync(mask, yes) != 0; }

template <typename T>
T atomicAdd(T* to, T value) {
  return std::atomic_ref<T>(*to).fetch_add(value);
}
template <typename T>
T atomicOr(T* to, T value) {
  return std::atomic_ref<T>(*to).fetch_or(value);
}
template <typename T>
T atomicExch(T* to, T value) {
  return std::atomic_ref<T>(*to).exchange(value);
}
template <typename T>
T atomicMax(T* to, T value) {
  std::atomic_ref<T> target(*to);
  T old = target.load();
  while (old < value && !target.compare_exchange_weak(old, value)) {
  }
  return old;
}
template <typename T>
T __ldg(const T* from) {
  return *from;
}
template <typename T>
T __ldcg(const T* from) {
  return *from;
}
template <typename T>
T __ldcs(const T* from) {
  return *from;
}
template <typename T>
void __stcs(T* to, T value) {
  *to = value;
}
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdividef(float a, float b) { return a / b; }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(uint64_t{a} * b >> 32);
}
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
using std::max;
using std::min;

namespace dtrun::gpu {

inline uint64_t FirstItem() { return uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
inline uint64_t ItemStride() { return uint64_t{gridDim.x} * blockDim.x; }

template <typename T>
T* SharedMemory() {
  return static_cast<T*>(gpu_simulator::DynamicShared());
}

inline uint32_t LoadAcquire(uint32_t* flag) {
  const uint32_t value = std::atomic_ref<uint32_t>(*flag).load(std::memory_order_acquire);
  gpu_simulator::Yield();
  return value;
}
inline void StoreRelease(uint32_t* flag, uint32_t value) {
  std::atomic_ref<uint32_t>(*flag).store(value, std::memory_order_seq_cst);
  gpu_simulator::RingBell();
}
inline void Relax(unsigned) { gpu_simulator::Yield(); }

}  // namespace dtrun::gpu

#endif
