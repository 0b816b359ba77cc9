#include "runtime/named/identity.h"

#include <algorithm>
#include <limits>

namespace dtrun::runtime::named {
namespace {

template <typename T>
T IdentityOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
    case ReduceOp::kAdasum: return T(0);
    case ReduceOp::kProduct: return T(1);
    case ReduceOp::kMin:
      return std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity()
                                                  : std::numeric_limits<T>::max();
    case ReduceOp::kMax:
      return std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity()
                                                  : std::numeric_limits<T>::lowest();
  }
  return T(0);
}

template <typename T>
void Fill(char* to, uint64_t count, T value) {
  T* const first = reinterpret_cast<T*>(to);
  std::fill(first, first + count, value);
}

// Of a 16-bit float whose 1 and infinity have these bits.
uint16_t HalfIdentity(ReduceOp op, uint16_t one, uint16_t infinity) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
    case ReduceOp::kAdasum: return 0;
    case ReduceOp::kProduct: return one;
    case ReduceOp::kMin: return infinity;
    case ReduceOp::kMax: return static_cast<uint16_t>(infinity | 0x8000);
  }
  return 0;
}

}  // namespace

void FillIdentity(char* to, uint64_t count, DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::kU8: return Fill(to, count, IdentityOf<uint8_t>(op));
    case DType::kI8: return Fill(to, count, IdentityOf<int8_t>(op));
    case DType::kU16: return Fill(to, count, IdentityOf<uint16_t>(op));
    case DType::kI16: return Fill(to, count, IdentityOf<int16_t>(op));
    case DType::kU32: return Fill(to, count, IdentityOf<uint32_t>(op));
    case DType::kI32: return Fill(to, count, IdentityOf<int32_t>(op));
    case DType::kU64: return Fill(to, count, IdentityOf<uint64_t>(op));
    case DType::kI64: return Fill(to, count, IdentityOf<int64_t>(op));
    case DType::kF16: return Fill(to, count, HalfIdentity(op, 0x3c00, 0x7c00));
    case DType::kBF16: return Fill(to, count, HalfIdentity(op, 0x3f80, 0x7f80));
    case DType::kF32: return Fill(to, count, IdentityOf<float>(op));
    case DType::kF64: return Fill(to, count, IdentityOf<double>(op));
    case DType::kBool: {
      const bool is_and = op == ReduceOp::kProduct || op == ReduceOp::kMin;
      return Fill(to, count, static_cast<uint8_t>(is_and ? 1 : 0));
    }
  }
}

}  // namespace dtrun::runtime::named
