#include "runtime/used_flags.h"

#include <cstring>

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

void UsedFlags::Set(size_t i, bool used) {
  const double unused = Unused(op_);
  const uint64_t bits = BitsOf(where_.dtype, used ? 1 - unused : unused);
  std::memcpy(At(i), &bits, SizeOf(where_.dtype));
}

bool UsedFlags::WasUsed(size_t i) const {
  uint64_t bits = 0;
  std::memcpy(&bits, At(i), SizeOf(where_.dtype));
  return bits != BitsOf(where_.dtype, Unused(op_));
}

}  // namespace dtrun::runtime
