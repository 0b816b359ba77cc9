#ifndef DTRUN_RUNTIME_STEP_SUM_OF_SQUARES_H_
#define DTRUN_RUNTIME_STEP_SUM_OF_SQUARES_H_

#include "dtrun/types.h"

namespace dtrun::runtime {

/// Of f32 or f64, added in f64 in an order that never changes.
double SumOfSquares(const Buffer& buffer);

}  // namespace dtrun::runtime

#endif
