#ifndef DTRUN_OPS_REDUCE_INSTRUCTION_SET_H_
#define DTRUN_OPS_REDUCE_INSTRUCTION_SET_H_

#include <cstdint>
#include <vector>

#include "ops/reduce/recurrence.h"
#include "ops/reduce/reduce.h"
#include "ops/reduce/weighted.h"

namespace dtrun::ops {

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

/// Reduce, Convert and Copy of reduce.h, ReduceAndRecur, and the functions of weighted.h, with an
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

#endif
