#ifndef DTRUN_RUNTIME_NAMED_IDENTITY_H_
#define DTRUN_RUNTIME_NAMED_IDENTITY_H_

#include <cstdint>

#include "dtrun/types.h"

namespace dtrun::runtime::named {

/// Fills `count` elements of `dtype` at `to` with what changes no value that it is combined with: 0
/// for a sum, the infinity above for a minimum, and so on; of integers their largest or smallest.
void FillIdentity(char* to, uint64_t count, DType dtype, ReduceOp op);

}  // namespace dtrun::runtime::named

#endif
