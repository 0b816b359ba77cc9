#ifndef DTRUN_TYPES_H_
#define DTRUN_TYPES_H_

#if __cplusplus < 201703L
#error "dtrun's C++ headers need C++17: compile with -std=c++17 or later"
#endif

#include <dtrun/c.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace dtrun {

enum class DType : int32_t {
  kU8 = DTRUN_U8,
  kI8 = DTRUN_I8,
  kU16 = DTRUN_U16,
  kI16 = DTRUN_I16,
  kU32 = DTRUN_U32,
  kI32 = DTRUN_I32,
  kU64 = DTRUN_U64,
  kI64 = DTRUN_I64,
  kF16 = DTRUN_F16,
  kBF16 = DTRUN_BF16,
  kF32 = DTRUN_F32,
  kF64 = DTRUN_F64,
  kBool = DTRUN_BOOL,
};

enum class ReduceOp : int32_t {
  kSum = DTRUN_SUM,
  kAverage = DTRUN_AVERAGE,
  kMin = DTRUN_MIN,
  kMax = DTRUN_MAX,
  kProduct = DTRUN_PRODUCT,
  /// Of NamedQueue::AllReduce and of DistributedOptimizers alone: see dtrun_named_operation.
  kAdasum = DTRUN_ADASUM,
};

/// Factors of a reduction: every input is multiplied by `before`, the result by `after`. Floats are
/// multiplied in the type that they accumulate in; integers in f64, then truncated toward zero and
/// kept inside their type. Both are finite; of bools, both are 1.
struct Scale {
  double before = 1;
  double after = 1;
};

/// Bytes of one element; 0 for a value that is no DType.
inline uint64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kU8:
    case DType::kI8:
    case DType::kBool: return 1;
    case DType::kU16:
    case DType::kI16:
    case DType::kF16:
    case DType::kBF16: return 2;
    case DType::kU32:
    case DType::kI32:
    case DType::kF32: return 4;
    case DType::kU64:
    case DType::kI64:
    case DType::kF64: return 8;
  }
  return 0;
}

/// "f32" and so on.
inline const char* NameOf(DType dtype) {
  switch (dtype) {
    case DType::kU8: return "u8";
    case DType::kI8: return "i8";
    case DType::kU16: return "u16";
    case DType::kI16: return "i16";
    case DType::kU32: return "u32";
    case DType::kI32: return "i32";
    case DType::kU64: return "u64";
    case DType::kI64: return "i64";
    case DType::kF16: return "f16";
    case DType::kBF16: return "bf16";
    case DType::kF32: return "f32";
    case DType::kF64: return "f64";
    case DType::kBool: return "bool";
  }
  return "unknown dtype";
}

inline const char* NameOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kAverage: return "average";
    case ReduceOp::kMin: return "min";
    case ReduceOp::kMax: return "max";
    case ReduceOp::kProduct: return "product";
    case ReduceOp::kAdasum: return "adasum";
  }
  return "unknown reduce op";
}

namespace detail {

/// The DType of an arithmetic C++ type of 1, 2, 4 or 8 bytes; `char` is the integer that it is
/// here.
template <typename T>
constexpr DType DTypeOf() {
  static_assert(
      std::is_arithmetic_v<T>, "dtrun: only arithmetic types have a DType; name it explicitly");
  static_assert(sizeof(T) <= 8, "dtrun: no DType has elements of more than 8 bytes");
  if constexpr (std::is_same_v<T, bool>) {
    return DType::kBool;
  } else if constexpr (std::is_floating_point_v<T>) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "dtrun: no DType for this floating point type");
    return sizeof(T) == 4 ? DType::kF32 : DType::kF64;
  } else if constexpr (std::is_signed_v<T>) {
    return sizeof(T) == 1   ? DType::kI8
           : sizeof(T) == 2 ? DType::kI16
           : sizeof(T) == 4 ? DType::kI32
                            : DType::kI64;
  } else {
    return sizeof(T) == 1   ? DType::kU8
           : sizeof(T) == 2 ? DType::kU16
           : sizeof(T) == 4 ? DType::kU32
                            : DType::kU64;
  }
}

}  // namespace detail

/// A typed view of memory that someone else owns. Copying it copies the view.
struct Buffer {
  void* data = nullptr;
  uint64_t count = 0;  ///< elements
  DType dtype = DType::kF32;
  int32_t device = -1;     ///< -1: host memory
  void* stream = nullptr;  ///< the stream that makes the data, null on the host

  Buffer() = default;
  Buffer(void* data_in, uint64_t count_in, DType dtype_in)
      : data(data_in), count(count_in), dtype(dtype_in) {}
  template <typename T>
  Buffer(T* data_in, uint64_t count_in) : Buffer(data_in, count_in, detail::DTypeOf<T>()) {}

  uint64_t bytes() const { return count * SizeOf(dtype); }

  /// Elements [first, first + n). The caller sees to it that they exist.
  Buffer Slice(uint64_t first, uint64_t n) const {
    Buffer slice = *this;
    slice.data = static_cast<char*>(data) + first * SizeOf(dtype);
    slice.count = n;
    return slice;
  }
};

/// Where this process stands among the ranks of the job; see c.h.
using Topology = dtrun_topology;

namespace detail {

inline dtrun_buffer ToC(const Buffer& buffer) {
  return dtrun_buffer{
      buffer.data, buffer.count, static_cast<int32_t>(buffer.dtype), buffer.device, buffer.stream};
}

inline dtrun_scale ToC(const Scale& scale) { return dtrun_scale{scale.before, scale.after}; }

inline Buffer FromC(const dtrun_buffer& buffer) {
  Buffer result(buffer.data, buffer.count, static_cast<DType>(buffer.dtype));
  result.device = buffer.device;
  result.stream = buffer.stream;
  return result;
}

/// Owns what the C ABI handed out.
template <typename T, void (*Destroy)(T*)>
struct Destroyer {
  void operator()(T* handle) const { Destroy(handle); }
};

}  // namespace detail
}  // namespace dtrun

#endif
