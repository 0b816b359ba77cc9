// The operations of BlockDevice on a GPU, with the bits of the CPU (block_args.h tells the order of
// sums). A product and a sum are not contracted (-fmad=false).

#include "gpu/kernel.h"
#include "runtime/device/block_args.h"

namespace dtrun::runtime {
namespace {

template <typename T>
__device__ void Multiply(const BlockMultiplyArgs& args) {
  T* values = static_cast<T*>(args.values);
  const T factor = static_cast<T>(args.factor);
  for (uint64_t i = gpu::FirstItem(); i < args.count; i += gpu::ItemStride()) values[i] *= factor;
}

template <typename T>
__device__ double Square(T value, uint64_t) {
  return static_cast<double>(value) * static_cast<double>(value);
}

template <typename Bits>
__device__ double IsNonFinite(Bits bits, uint64_t exponent) {
  return (bits & exponent) == exponent ? 1 : 0;
}

// Each group of kSumParts threads adds one chunk.
template <typename T, double (*Map)(T, uint64_t)>
__device__ void SumChunks(const BlockSumArgs& args) {
  __shared__ double parts[256];
  const uint64_t chunk = gpu::FirstItem() / kSumParts, begin = chunk * kSumChunk;
  const uint64_t stop = begin + kSumChunk;
  const uint64_t end = stop < args.count ? stop : args.count;
  const uint32_t part = threadIdx.x % kSumParts;
  double sum = 0;
  for (uint64_t i = begin + part; i < end; i += kSumParts)
    sum += Map(static_cast<const T*>(args.values)[i], args.exponent);
  parts[threadIdx.x] = sum;
  __syncthreads();
  if (part != 0 || begin >= args.count) return;
  double total = 0;
  for (uint32_t k = 0; k < kSumParts; ++k) total += parts[threadIdx.x + k];
  args.sums[chunk] = total;
}

}  // namespace

DTRUN_KERNEL(dtrun_block_multiply_f32, BlockMultiplyArgs) { Multiply<float>(args); }
DTRUN_KERNEL(dtrun_block_multiply_f64, BlockMultiplyArgs) { Multiply<double>(args); }
DTRUN_KERNEL(dtrun_block_squares_f32, BlockSumArgs) { SumChunks<float, Square<float>>(args); }
DTRUN_KERNEL(dtrun_block_squares_f64, BlockSumArgs) { SumChunks<double, Square<double>>(args); }
DTRUN_KERNEL(dtrun_block_non_finite_16, BlockSumArgs) {
  SumChunks<uint16_t, IsNonFinite<uint16_t>>(args);
}
DTRUN_KERNEL(dtrun_block_non_finite_32, BlockSumArgs) {
  SumChunks<uint32_t, IsNonFinite<uint32_t>>(args);
}
DTRUN_KERNEL(dtrun_block_non_finite_64, BlockSumArgs) {
  SumChunks<uint64_t, IsNonFinite<uint64_t>>(args);
}

}  // namespace dtrun::runtime
