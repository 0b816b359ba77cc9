#ifndef DTRUN_OPS_REDUCE_REDUCE_H_
#define DTRUN_OPS_REDUCE_REDUCE_H_

#include <cstdint>
#include <vector>

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

/// A linear recurrence over f32 that is fed by a reduction, element by element:
///
///   x           = reduced + decay * value
///   accumulator = keep * accumulator + take * x
///   value       = value + by_accumulator * accumulator + by_input * x
///
/// Without an accumulator: value = value + by_input * x.
struct Recurrence {
  float keep = 0, take = 1, decay = 0, by_accumulator = 0, by_input = 0;
};

/// Where it works: f32 arrays of equal length that do not overlap.
struct RecurrenceArrays {
  float* accumulator = nullptr;  ///< nullptr: none
  float* values = nullptr;
  void* const* copies = nullptr;  ///< become equal to `values`
  int copy_count = 0;
};

/// One step of the recurrence with the reduction of `inputs`, f32 as well: the bits are those of
/// Reduce followed by the recurrence, on every instruction set. `arithmetic.op` is a sum or an
/// average. One or two inputs and everything else pass through memory once; of more inputs the
/// reduction goes through the first-level cache. With streaming stores the copies are complete
/// after the thread's next FenceStores(). Thread-safe.
void ReduceAndRecur(
    const void* const* inputs, int input_count, const Arithmetic& arithmetic,
    const Recurrence& recurrence, const RecurrenceArrays& arrays, uint64_t count);

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

struct Kernels;

/// One of the instruction sets that ops/reduce is compiled for.
struct InstructionSet {
  const char* name;
  const Kernels* kernels;
};

/// Those that this CPU has, the best one first. All of them give the same bits.
std::vector<InstructionSet> InstructionSetsHere();

/// From here on Reduce, Convert, Copy and so on of this process use `set`, one of those; before,
/// they use the best one.
///
/// The choice is the process's, not a communicator's: as all sets give the same bits, nothing but
/// speed depends on it, and where a process is several ranks they share one CPU. Init makes it
/// before the first operation. Thread-safe: a reduction under way ends with the set it began with.
void UseInstructionSet(const InstructionSet& set);

/// Reduce, Convert, Copy, ReduceAndRecur and the functions of weighted sums, with an
/// instruction set of the caller's choice: for tests and benchmarks.
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
