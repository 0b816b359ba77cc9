#ifndef DTRUN_OPS_REDUCE_REDUCE_H_
#define DTRUN_OPS_REDUCE_REDUCE_H_

#include <cstdint>

#include "dtrun/types.h"

namespace dtrun::ops {

/// Where results are stored. Streaming stores go past the cache, straight to memory, and save
/// reading a line only to overwrite it. They are for results that are larger than the cache or that
/// nobody reads soon. They are complete (fenced) when the call returns.
enum class Stores { kCached, kStreaming };

/// How inputs become a result.
struct Arithmetic {
  ReduceOp op = ReduceOp::kSum;
  int divisor = 0;  ///< of an average; 0: the number of inputs
  Scale scale = {};
  /// Streaming takes effect on outputs that begin at a multiple of 64 bytes and are no inputs: the
  /// lines of an input have been read anyway, and cached stores are never slower there.
  Stores stores = Stores::kCached;
};

/// The arithmetic of a reduction over ranks.
///
/// Element i of every output becomes op(inputs[0][i], ..., inputs[input_count - 1][i]), combined in
/// a balanced tree over the inputs in their order, so the same inputs give the same bits whoever
/// computes them and however the elements are cut:
///
///   5 inputs: ((a + b) + c) + (d + e)
///
/// kAverage is the sum divided by `divisor`; of integers it truncates toward zero, and the sum may
/// wrap. f16 and bf16 accumulate in f32 and are rounded once. On bools sum and max are "or";
/// product and min are "and"; average is "or". A minimum or maximum of which one side is NaN is
/// NaN.
///
/// A scale multiplies floats in their own arithmetic (f16 and bf16 in f32, still rounded once).
/// Integers are multiplied in f64, truncated toward zero and kept inside their type; a factor of 1
/// leaves them alone. Bools are not scaled. With one input, Reduce is a copy or, in place, a
/// scaling.
///
/// The bits (but for which NaN a NaN is) do not depend on the instruction set, nor on how the
/// calling thread rounds or whether it flushes denormals. An output may be one of the inputs;
/// partial overlap is not allowed. At least one input. Thread-safe.
void Reduce(
    const void* const* inputs, int input_count, void* const* outputs, int output_count,
    uint64_t count, DType dtype, const Arithmetic& arithmetic);

/// Converts f32 to f16 or bf16 (rounded to nearest, ties to even; a NaN stays one) or f16 or bf16
/// to f32 (exact). Input and output do not overlap. Thread-safe. Error: kInvalidArgument for any
/// other pair of dtypes.
void Convert(const void* input, DType from, void* output, DType to, uint64_t count);

/// memcpy with a choice of stores. Thread-safe.
void Copy(void* to, const void* from, uint64_t bytes, Stores stores);

/// The same with streaming stores that are complete after the next FenceStores() of this thread
/// only: for many small pieces, each of which would wait for memory in its own fence.
void CopyUnfenced(void* to, const void* from, uint64_t bytes);
void FenceStores();

/// The instruction set that all of this uses here: "avx512", "avx2" or "baseline".
const char* ReduceInstructionSet();

}  // namespace dtrun::ops

#endif
