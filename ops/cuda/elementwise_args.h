#ifndef DTRUN_OPS_CUDA_ELEMENTWISE_ARGS_H_
#define DTRUN_OPS_CUDA_ELEMENTWISE_ARGS_H_

#include <cstdint>

// What the kernels of pack.cu are given. Plain data, for the host and for kernels alike.

namespace dtrun::ops::cuda {

/// Part of a tensor; a block of threads takes one at a time.
struct PackPiece {
  void* data;      // of the part
  uint64_t first;  // the element of the flat block that it lies at
  uint32_t count;  // elements
  uint32_t dtype;  // DTRUN_F16, DTRUN_BF16 or DTRUN_F32
};

struct PackArgs {
  const PackPiece* pieces;
  uint32_t piece_count;
  uint32_t block_dtype;
  void* block;
  float scale;
};

/// The numbers of the types that can be packed: DTRUN_F16, DTRUN_BF16, DTRUN_F32.
enum PackDType : uint32_t { kPackF16 = 8, kPackBF16 = 9, kPackF32 = 10 };

constexpr uint32_t kPackThreads = 256;
constexpr uint32_t kPieceElements = 16 * kPackThreads;

constexpr int kMostGathered = 1024;

/// Element i of `output` from elements i of `inputs` pieces, `stride` bytes apart, with the
/// arithmetic of ops/reduce/reduce.h.
struct ReducePiecesArgs {
  const char* pieces;
  char* output;
  uint64_t stride, count;
  double before, after;
  int32_t inputs, divisor;
  int32_t dtype, op;  // of dtrun/types.h
  int32_t scaled;
  uint8_t combines[kMostGathered];  // by input: how often to combine the last two when it has come
};

}  // namespace dtrun::ops::cuda

#endif  // DTRUN_OPS_CUDA_ELEMENTWISE_ARGS_H_
