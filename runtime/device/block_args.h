#ifndef DTRUN_RUNTIME_DEVICE_BLOCK_ARGS_H_
#define DTRUN_RUNTIME_DEVICE_BLOCK_ARGS_H_

#include <cstdint>

namespace dtrun::runtime {

// A sum over a buffer is computed in chunks. Element k of a chunk belongs to part k % kSumParts.
// The elements of a part are added in their order, then the parts, then the chunks. So the CPU adds
// the parts of a chunk with vector instructions, and a GPU adds each part in a thread.
constexpr uint32_t kSumChunk = 4096, kSumParts = 16;

/// dtrun_block_multiply_f32 and _f64.
struct BlockMultiplyArgs {
  void* values;
  uint64_t count;
  double factor;
};

/// dtrun_block_squares_f32 and _f64, and dtrun_block_non_finite_16, _32 and _64.
struct BlockSumArgs {
  const void* values;
  uint64_t count;
  double* sums;       // by chunk
  uint64_t exponent;  // of a number that is not finite: all bits of its exponent
};

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_DEVICE_BLOCK_ARGS_H_
