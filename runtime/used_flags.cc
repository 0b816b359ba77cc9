#include "runtime/used_flags.h"

namespace dtrun::runtime {
namespace {

// The value of a flag that changes nothing in the reduction of others: it stays only if no rank
// used the gradient.
double Unused(ReduceOp op) { return op == ReduceOp::kMin || op == ReduceOp::kProduct ? 1 : 0; }

// The bytes of 0 or 1.
uint64_t BitsOf(DType dtype, double value) {
  if (value == 0) return 0;
  if (dtype == DType::kF64) return 0x3ff0000000000000u;
  if (dtype == DType::kF16) return 0x3c00;
  if (dtype == DType::kBF16) return 0x3f80;
  return 0x3f800000;
}

}  // namespace

UsedFlags::UsedFlags(ReduceOp op, Buffer where)
    : data_(static_cast<char*>(where.data)),
      bytes_(SizeOf(where.dtype)),
      used_(BitsOf(where.dtype, 1 - Unused(op))),
      unused_(BitsOf(where.dtype, Unused(op))) {}

}  // namespace dtrun::runtime
