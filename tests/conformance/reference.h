#ifndef DTRUN_TESTS_CONFORMANCE_REFERENCE_H_
#define DTRUN_TESTS_CONFORMANCE_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "dtrun/types.h"

namespace dtrun::testing {

using Bytes = std::vector<unsigned char>;

constexpr DType kDTypes[] = {DType::kU8,  DType::kI8,  DType::kU16, DType::kI16, DType::kU32,
                             DType::kI32, DType::kU64, DType::kI64, DType::kF16, DType::kBF16,
                             DType::kF32, DType::kF64, DType::kBool};
constexpr ReduceOp kReduceOps[] = {
    ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};

/// The values of input elements.
enum class Values {
  kExact,  ///< small integers: sums and products over up to 8 ranks are exact in every type
  kAny,    ///< integers of all bits; floats of both signs, so that sums round
};

/// 64 bits that look random and depend on all arguments.
uint64_t Hash(uint64_t seed, uint64_t a, uint64_t b = 0);

/// Elements [first, first + count) of the input of rank `rank`.
Bytes MakeValues(
    Values values, DType dtype, ReduceOp op, uint64_t seed, int rank, uint64_t first,
    uint64_t count);

/// A second, simple implementation of the arithmetic that <dtrun/communicator.h> promises: element
/// by element, with a balanced tree over the inputs in their order.
Bytes Reduced(const std::vector<Bytes>& inputs, DType dtype, ReduceOp op, Scale scale);

}  // namespace dtrun::testing

#endif
