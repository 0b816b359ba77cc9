#ifndef DTRUN_OPS_REDUCE_WEIGHTED_H_
#define DTRUN_OPS_REDUCE_WEIGHTED_H_

#include <cstdint>

#include "ops/reduce/reduce.h"

namespace dtrun::ops {

/// Of two vectors a and b: a.a, b.b and a.b.
struct Products {
  double aa = 0, bb = 0, ab = 0;
};

/// f16, bf16, f32 and f64: what the functions below work on.
bool HasWeightedSums(DType dtype);

/// The products of two weighted sums of vectors of `count` elements, in f64:
///
///   a = weights[0] inputs[0] + ... + weights[half - 1] inputs[half - 1]
///   b = weights[half] inputs[half] + ... + weights[2 half - 1] inputs[2 half - 1]
///
/// Where `half` is 1, the weights are taken to be 1. The order of all additions is fixed: the bits
/// do not depend on the instruction set, nor on how the thread rounds. Thread-safe.
Products ProductsOfSums(
    const void* const* inputs, const double* weights, int half, uint64_t count, DType dtype);

/// Every output becomes weights[0] inputs[0] + ... of the `input_count` inputs, computed in f64 and
/// rounded once; f16 and bf16 by way of f32. An output may be an input; streaming as in
/// `Arithmetic`. Bits and threads as above.
void WeightedSum(
    const void* const* inputs, const double* weights, int input_count, void* const* outputs,
    int output_count, uint64_t count, DType dtype, Stores stores);

}  // namespace dtrun::ops

#endif
