#ifndef DTRUN_OPS_NCCL_REDUCE_PIECES_H_
#define DTRUN_OPS_NCCL_REDUCE_PIECES_H_

#include <cstdint>

namespace dtrun::ops::cuda {

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

#endif
