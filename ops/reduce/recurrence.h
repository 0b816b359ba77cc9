#ifndef DTRUN_OPS_REDUCE_RECURRENCE_H_
#define DTRUN_OPS_REDUCE_RECURRENCE_H_

#include <cstdint>

#include "ops/reduce/reduce.h"

namespace dtrun::ops {

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

}  // namespace dtrun::ops

#endif
