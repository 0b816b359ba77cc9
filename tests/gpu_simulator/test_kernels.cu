#include "gpu/kernel.h"
#include "tests/gpu_simulator/test_kernels.h"

using dtrun::gpu::FirstItem;
using dtrun::gpu::ItemStride;

DTRUN_KERNEL(dtrun_test_scale, dtrun::testing::ScaleArgs) {
  for (uint64_t i = FirstItem(); i < args.count; i += ItemStride()) args.values[i] *= args.factor;
}

DTRUN_KERNEL(dtrun_test_sum, dtrun::testing::SumArgs) {
  __shared__ float of_warp[8];
  float sum = 0;
  for (uint64_t i = FirstItem(); i < args.count; i += ItemStride()) sum += args.values[i];
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, lanes);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    float all = 0;
    for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) all += of_warp[warp];
    args.sums[blockIdx.x] = all;
  }
}

DTRUN_KERNEL(dtrun_test_rotate, dtrun::testing::RotateArgs) {
  __shared__ uint32_t shared[1024];
  uint32_t* values = args.values + blockIdx.x * blockDim.x;
  shared[threadIdx.x] = values[threadIdx.x];
  __syncthreads();
  values[threadIdx.x] = shared[(threadIdx.x + args.by) % blockDim.x];
}

DTRUN_KERNEL(dtrun_test_meet, dtrun::testing::MeetArgs) {
  if (threadIdx.x == 0) {
    dtrun::gpu::StoreRelease(args.mine, args.epoch);
    while (dtrun::gpu::LoadAcquire(args.theirs) < args.epoch) dtrun::gpu::Relax(100);
  }
  __syncthreads();
  if (threadIdx.x == 33) *args.value += *args.peer_value;
}

DTRUN_KERNEL(dtrun_test_halves, dtrun::testing::HalfArgs) {
  for (uint64_t i = FirstItem(); i < args.count; i += ItemStride()) {
    args.bf16[i] = __bfloat16_as_ushort(__float2bfloat16(args.values[i]));
    args.f16[i] = __half_as_ushort(__float2half(args.values[i]));
  }
}
