#ifndef DTRUN_OPS_CUDA_ELEMENTWISE_ARGS_H_
#define DTRUN_OPS_CUDA_ELEMENTWISE_ARGS_H_

#include <cstdint>

// Arguments of the kernels of pack.cu and reduce_pieces.cu. Plain data, for the host and for
// kernels.

namespace dtrun::ops::cuda {

/// Part of a tensor. A block of threads takes one piece at a time.
struct PackPiece {
  void* data;      // of this part
  uint64_t first;  // its first element in the flat block
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

/// Reduces `inputs` arrays into one: element i of `output` comes from element i of every array. The
/// arrays begin `stride` bytes apart. The arithmetic is that of ops/reduce/reduce.h.
struct ReducePiecesArgs {
  const char* pieces;
  char* output;
  uint64_t stride, count;
  double before, after;
  int32_t inputs, divisor;
  int32_t dtype, op;  // of dtrun/types.h
  int32_t scaled;
  uint8_t combines[kMostGathered];  // by input: combinations of the last two values after it
};

}  // namespace dtrun::ops::cuda

#endif  // DTRUN_OPS_CUDA_ELEMENTWISE_ARGS_H_
