#ifndef DTRUN_OPS_REDUCE_REDUCE_H_
#define DTRUN_OPS_REDUCE_REDUCE_H_

#include <cstdint>
#include <vector>

#include "dtrun/types.h"

namespace dtrun::ops {

/// How results are stored. Streaming stores go past the cache to memory, and do not read a line
/// that they overwrite. Use them for results that are larger than the cache or that are not read
/// soon. They are complete (fenced) when the call returns.
enum class Stores { kCached, kStreaming };

/// How a reduction combines its inputs and stores the result.
struct Arithmetic {
  ReduceOp op = ReduceOp::kSum;
  int divisor = 0;  ///< of an average; 0: the number of inputs
  Scale scale = {};
  /// Only outputs that begin at a multiple of 64 bytes and are no inputs are streamed. The lines of
  /// an input have been read anyway, so cached stores are never slower there.
  Stores stores = Stores::kCached;
};

/// Reduces inputs element by element: the arithmetic of a reduction over ranks.
///
/// Element i of every output becomes op(inputs[0][i], ..., inputs[input_count - 1][i]). The inputs
/// are combined in a balanced tree, in their order:
///
///   5 inputs: ((a + b) + c) + (d + e)
///
/// So the same inputs give the same bits on every rank, however the elements are cut.
///
/// kAverage is the sum divided by `divisor`. The average of integers truncates toward zero, and
/// their sum may wrap. f16 and bf16 accumulate in f32 and are rounded once. On bools, sum, max and
/// average are "or"; product and min are "and". If one side is NaN, the minimum and the maximum are
/// NaN.
///
/// A scale multiplies floats in their own arithmetic (f16 and bf16 in f32, still rounded once).
/// Integers are multiplied in f64, truncated toward zero and kept inside their type; a factor of 1
/// leaves them unchanged. Bools are not scaled. With one input, Reduce copies it and applies the
/// scale.
///
/// The bits do not depend on the instruction set, the rounding mode of the calling thread or its
/// handling of denormals. The payload of a NaN may differ. An output may be one of the inputs;
/// partial overlap is not allowed. At least one input. Thread-safe.
void Reduce(
    const void* const* inputs, int input_count, void* const* outputs, int output_count,
    uint64_t count, DType dtype, const Arithmetic& arithmetic);

/// Converts f32 to f16 or bf16, or f16 or bf16 to f32. A conversion to 16 bits rounds to nearest,
/// ties to even, and keeps NaN. A conversion to f32 is exact. Input and output do not overlap.
/// Throws Error kInvalidArgument for any other pair of types. Thread-safe.
void Convert(const void* input, DType from, void* output, DType to, uint64_t count);

/// Copies bytes with the given stores. Thread-safe.
void Copy(void* to, const void* from, uint64_t bytes, Stores stores);

/// Copies with streaming stores that are complete only after the next FenceStores() of this thread.
/// For many small pieces: a fence per piece would wait for memory each time.
void CopyUnfenced(void* to, const void* from, uint64_t bytes);
void FenceStores();

/// The instruction set that these functions use: "avx512", "avx2" or "baseline".
const char* ReduceInstructionSet();

/// A linear recurrence over f32. A reduction feeds it, element by element:
///
///   x           = reduced + decay * value
///   accumulator = keep * accumulator + take * x
///   value       = value + by_accumulator * accumulator + by_input * x
///
/// Without an accumulator: value = value + by_input * x.
struct Recurrence {
  float keep = 0, take = 1, decay = 0, by_accumulator = 0, by_input = 0;
};

/// The arrays of a recurrence: f32, of equal length, without overlap.
struct RecurrenceArrays {
  float* accumulator = nullptr;  ///< nullptr: none
  float* values = nullptr;
  void* const* copies = nullptr;  ///< become equal to `values`
  int copy_count = 0;
};

/// Does one step of the recurrence with the reduction of the f32 arrays `inputs`. The bits are
/// those of Reduce followed by the recurrence, on every instruction set. `arithmetic.op` is a sum
/// or an average. With one or two inputs, all arrays pass through memory once. With more inputs,
/// the reduction is buffered in the first-level cache. Streamed copies are complete after the
/// thread's next FenceStores(). Thread-safe.
void ReduceAndRecur(
    const void* const* inputs, int input_count, const Arithmetic& arithmetic,
    const Recurrence& recurrence, const RecurrenceArrays& arrays, uint64_t count);

/// The products of two vectors a and b: a.a, b.b and a.b.
struct Products {
  double aa = 0, bb = 0, ab = 0;
};

/// True for f16, bf16, f32 and f64, the types of the functions below.
bool HasWeightedSums(DType dtype);

/// Computes, in f64, the products of two weighted sums of vectors of `count` elements:
///
///   a = weights[0] inputs[0] + ... + weights[half - 1] inputs[half - 1]
///   b = weights[half] inputs[half] + ... + weights[2 half - 1] inputs[2 half - 1]
///
/// If `half` is 1, the weights count as 1. The order of all additions is fixed, so the bits do not
/// depend on the instruction set or on the thread's rounding mode. Thread-safe.
Products ProductsOfSums(
    const void* const* inputs, const double* weights, int half, uint64_t count, DType dtype);

/// Stores weights[0] inputs[0] + ... of the `input_count` inputs in every output. The sum is
/// computed in f64 and rounded once; f16 and bf16 are rounded by way of f32. An output may be an
/// input. Streaming works as in `Arithmetic`. The bits do not depend on the instruction set or on
/// the thread's rounding mode. Thread-safe.
void WeightedSum(
    const void* const* inputs, const double* weights, int input_count, void* const* outputs,
    int output_count, uint64_t count, DType dtype, Stores stores);

struct Kernels;

/// An instruction set for which ops/reduce is compiled.
struct InstructionSet {
  const char* name;
  const Kernels* kernels;
};

/// The instruction sets of this CPU, the best one first. All sets give the same bits.
std::vector<InstructionSet> InstructionSetsHere();

/// Selects `set`, one of InstructionSetsHere(), for Reduce, Convert, Copy and the other functions
/// of this process. Without a selection they use the best set.
///
/// The choice belongs to the process, not to a communicator: all sets give the same bits, so it
/// affects only speed, and the ranks of one process share a CPU. Init selects the set before the
/// first operation. Thread-safe: a running reduction ends with the set with which it began.
void UseInstructionSet(const InstructionSet& set);

/// Reduce, Convert, Copy, ReduceAndRecur and the weighted sums with a given instruction set, for
/// tests and benchmarks.
void ReduceWith(
    const InstructionSet& instructions, const void* const* inputs, int input_count,
    void* const* outputs, int output_count, uint64_t count, DType dtype,
    const Arithmetic& arithmetic);
void ReduceAndRecurWith(
    const InstructionSet& instructions, const void* const* inputs, int input_count,
    const Arithmetic& arithmetic, const Recurrence& recurrence, const RecurrenceArrays& arrays,
    uint64_t count);
Products ProductsOfSumsWith(
    const InstructionSet& instructions, const void* const* inputs, const double* weights, int half,
    uint64_t count, DType dtype);
void WeightedSumWith(
    const InstructionSet& instructions, const void* const* inputs, const double* weights,
    int input_count, void* const* outputs, int output_count, uint64_t count, DType dtype,
    Stores stores);
void ConvertWith(
    const InstructionSet& instructions, const void* input, DType from, void* output, DType to,
    uint64_t count);
void CopyWith(
    const InstructionSet& instructions, void* to, const void* from, uint64_t bytes, Stores stores);

}  // namespace dtrun::ops

#endif  // DTRUN_OPS_REDUCE_REDUCE_H_
