#ifndef DTRUN_TYPES_H_
#define DTRUN_TYPES_H_

#if __cplusplus < 201703L
#error "dtrun's C++ headers need C++17: compile with -std=c++17 or later"
#endif

#include <dtrun/c.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

/// Data-parallel training: communicators, distributed optimizers, strategies and checkpoints. A
/// program starts with `Init()`.
namespace dtrun {

/// The type of an element: an unsigned integer (U), a signed integer (I), a float (F) or a bool,
/// with its width in bits. BF16 is bfloat16. A bool has one byte.
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

/// The operation of a reduction, element by element over the ranks.
enum class ReduceOp : int32_t {
  kSum = DTRUN_SUM,          ///< the sum
  kAverage = DTRUN_AVERAGE,  ///< the sum, divided by the number of ranks
  kMin = DTRUN_MIN,          ///< the smallest element
  kMax = DTRUN_MAX,          ///< the largest element
  kProduct = DTRUN_PRODUCT,  ///< the product
  /// Only for NamedQueue::AllReduce and DistributedOptimizers: see dtrun_named_operation.
  kAdasum = DTRUN_ADASUM,
};

/// The factors of a reduction: every input is multiplied by `before`, the result by `after`. Both
/// factors are finite. Floats are multiplied in the type that they accumulate in. Integers are
/// multiplied in f64, truncated toward zero and clamped to their type. Bools need factors of 1.
struct Scale {
  double before = 1;  ///< factor of every input
  double after = 1;   ///< factor of the result
};

/// Bytes of one element. 0 for a value that is not a DType.
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

/// The name of the type, for example "f32".
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

/// The name of the operation, for example "sum".
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

/// The DType of an arithmetic C++ type of 1, 2, 4 or 8 bytes. `char` is signed or unsigned as on
/// this platform.
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

/// A typed view of memory. It does not own the memory. A copy is another view of the same memory.
struct Buffer {
  void* data = nullptr;       ///< the first element; may be null if `count` is 0
  uint64_t count = 0;         ///< elements
  DType dtype = DType::kF32;  ///< the type of the elements
  int32_t device = -1;        ///< -1: host memory
  void* stream = nullptr;     ///< the stream that produces the data; null for host memory

  /// A buffer without elements.
  Buffer() = default;
  /// A view of host memory.
  Buffer(void* data_in, uint64_t count_in, DType dtype_in)
      : data(data_in), count(count_in), dtype(dtype_in) {}
  /// A view of host memory, with the dtype of T, an arithmetic type of at most 8 bytes.
  template <typename T>
  Buffer(T* data_in, uint64_t count_in) : Buffer(data_in, count_in, detail::DTypeOf<T>()) {}

  /// The size in bytes.
  uint64_t bytes() const { return count * SizeOf(dtype); }

  /// The elements [first, first + n). The caller makes sure that they exist.
  Buffer Slice(uint64_t first, uint64_t n) const {
    Buffer slice = *this;
    slice.data = static_cast<char*>(data) + first * SizeOf(dtype);
    slice.count = n;
    return slice;
  }
};

/// The place of this process among the ranks of the job; see c.h.
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

/// Owns a handle of the C ABI.
template <typename T, void (*Destroy)(T*)>
struct Destroyer {
  /// Destroys `handle`.
  void operator()(T* handle) const { Destroy(handle); }
};

}  // namespace detail
}  // namespace dtrun

#endif
