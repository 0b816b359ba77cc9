#ifndef DTRUN_GPU_KERNEL_H_
#define DTRUN_GPU_KERNEL_H_

// The vocabulary of kernels, which are .cu files that the rule cuda_kernels compiles. Kernels use
// only the names of this header and these: threadIdx, blockIdx, blockDim, gridDim, __device__,
// __shared__ (arrays of a fixed size), __syncthreads, __syncwarp, __shfl_xor_sync,
// __shfl_down_sync, __shfl_sync, __ballot_sync, atomicAdd (f32, u32, u64), atomicMax, atomicOr,
// __ldg, __ldcg, __ldcs, __stcs, __fmul_rn, __nanosleep, __threadfence*, the types and conversions
// of cuda_fp16.h and cuda_bf16.h, float2, float4, uint2, uint4, and the mathematics of <cmath>.
//
// Tests run the same files on the CPU (tests/gpu_simulator). The simulator has only these names.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cuda/atomic>

/// Defines a kernel that takes one struct by value. Kernels::Launch finds the kernel by `name`:
///
///   DTRUN_KERNEL(dtrun_scale, ScaleArgs) {
///     for (uint64_t i = dtrun::gpu::FirstItem(); i < args.count; i += dtrun::gpu::ItemStride())
///     ...
///   }
#define DTRUN_KERNEL(name, Args) extern "C" __global__ void name(const __grid_constant__ Args args)

namespace dtrun::gpu {

/// The first item and the stride of this thread in a loop over items, for a one-dimensional launch
/// of any size.
__device__ inline uint64_t FirstItem() {
  return static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline uint64_t ItemStride() { return static_cast<uint64_t>(gridDim.x) * blockDim.x; }

// Flags for which kernels wait, on this GPU, on another GPU or in another process. A store releases
// the earlier writes of this thread. A load acquires the writes that the storing thread has
// released.
__device__ inline uint32_t LoadAcquire(uint32_t* flag) {
  return cuda::atomic_ref<uint32_t, cuda::thread_scope_system>(*flag).load(
      cuda::std::memory_order_acquire);
}
__device__ inline void StoreRelease(uint32_t* flag, uint32_t value) {
  cuda::atomic_ref<uint32_t, cuda::thread_scope_system>(*flag).store(
      value, cuda::std::memory_order_release);
}
/// Pauses in a loop that waits, so that other threads can run.
__device__ inline void Relax(unsigned nanoseconds) { __nanosleep(nanoseconds); }

}  // namespace dtrun::gpu

#endif
