#include "tests/conformance/reference.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace dtrun::testing {
namespace {

// The storage type S of an element, and the type A for its arithmetic.
template <typename T>
struct Plain {
  using S = T;
  using A = T;
  static A Widen(S value) { return value; }
  static S Narrow(A value) { return value; }
};

struct BFloat16 {
  using S = uint16_t;
  using A = float;
  static A Widen(S bits) {
    const uint32_t wide = uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
  static S Narrow(A value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint32_t upper = bits >> 16, rest = bits & 0xffff;
    const bool up = rest > 0x8000 || (rest == 0x8000 && upper % 2 == 1);
    return static_cast<S>(upper + (up ? 1 : 0));
  }
};

struct Half {
  using S = uint16_t;
  using A = float;
  static A Widen(S bits) {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const float sign = bits >> 15 != 0 ? -1.0f : 1.0f;
    if (exponent == 31) return sign * std::numeric_limits<float>::infinity();  // no NaN occurs
    if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
    return sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  }
  static S Narrow(A value) {
    const S sign = std::signbit(value) ? 0x8000 : 0;
    const float size = std::fabs(value);
    if (size >= 65520.0f) return sign | 0x7c00;
    // `exponent` gives the value of one unit in the last place. nearbyint rounds to even in the
    // current rounding mode.
    const int exponent = size < std::ldexp(1.0f, -14) ? -14 : std::ilogb(size);
    const auto units = static_cast<int>(std::nearbyint(std::ldexp(size, 10 - exponent)));
    // A carry to 2048 units increases the exponent without further code.
    return static_cast<S>(sign + ((exponent + 14) << 10) + units);
  }
};

struct Bool : Plain<uint8_t> {};

template <typename A>
A Scaled(A value, double factor) {
  if (factor == 1) return value;
  if constexpr (std::is_floating_point_v<A>) {
    return value * static_cast<A>(factor);
  } else {
    const double scaled = std::trunc(static_cast<double>(value) * factor);
    const auto least = static_cast<double>(std::numeric_limits<A>::min());
    const double beyond = std::ldexp(1.0, std::numeric_limits<A>::digits);
    if (scaled < least) return std::numeric_limits<A>::min();
    if (scaled >= beyond) return std::numeric_limits<A>::max();
    return static_cast<A>(scaled);
  }
}

template <typename A>
A Combined(A a, A b, ReduceOp op) {
  using U = std::conditional_t<std::is_floating_point_v<A>, A, uint64_t>;  // integers wrap
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage: return static_cast<A>(static_cast<U>(a) + static_cast<U>(b));
    case ReduceOp::kMin: return b < a ? b : a;
    case ReduceOp::kMax: return b > a ? b : a;
    case ReduceOp::kProduct: return static_cast<A>(static_cast<U>(a) * static_cast<U>(b));
    case ReduceOp::kAdasum: break;  // combines whole tensors, not single elements
  }
  return a;
}

uint8_t CombinedBools(uint8_t a, uint8_t b, ReduceOp op) {
  const bool either = op == ReduceOp::kSum || op == ReduceOp::kMax || op == ReduceOp::kAverage;
  return either ? (a | b) : (a & b);
}

// Combines values[0, n) as a balanced tree: ((a + b) + c) + (d + e).
template <typename Type>
typename Type::A Tree(const typename Type::A* values, size_t n, ReduceOp op) {
  if (n == 1) return values[0];
  const size_t left = n - n / 2;
  const auto a = Tree<Type>(values, left, op), b = Tree<Type>(values + left, n / 2, op);
  if constexpr (std::is_same_v<Type, Bool>) {
    return CombinedBools(a, b, op);
  } else {
    return Combined(a, b, op);
  }
}

template <typename A>
A Averaged(A sum, size_t n) {
  if constexpr (std::is_floating_point_v<A>) {
    return sum * (A{1} / static_cast<A>(n));
  } else if constexpr (std::is_signed_v<A>) {
    return static_cast<A>(int64_t{sum} / static_cast<int64_t>(n));
  } else {
    return static_cast<A>(uint64_t{sum} / n);
  }
}

template <typename Type>
Bytes ReducedAs(const std::vector<Bytes>& inputs, ReduceOp op, Scale scale) {
  using S = typename Type::S;
  const size_t count = inputs[0].size() / sizeof(S), n = inputs.size();
  Bytes output(inputs[0].size());
  std::vector<typename Type::A> values(n);
  for (size_t i = 0; i < count; ++i) {
    for (size_t r = 0; r < n; ++r) {
      S stored;
      std::memcpy(&stored, inputs[r].data() + i * sizeof(S), sizeof(S));
      values[r] = Scaled(Type::Widen(stored), scale.before);
    }
    auto result = Tree<Type>(values.data(), n, op);
    if (op == ReduceOp::kAverage && !std::is_same_v<Type, Bool>) result = Averaged(result, n);
    const S stored = Type::Narrow(Scaled(result, scale.after));
    std::memcpy(output.data() + i * sizeof(S), &stored, sizeof(S));
  }
  return output;
}

template <typename Type>
typename Type::S ExactValue(uint64_t hash, ReduceOp op) {
  const unsigned value = op == ReduceOp::kProduct ? 1 + hash % 2 : hash % 4;
  if constexpr (std::is_same_v<Type, Bool>) {
    return value % 2;
  } else {
    return Type::Narrow(static_cast<typename Type::A>(value));
  }
}

template <typename Type>
typename Type::S AnyValue(uint64_t hash) {
  if constexpr (std::is_same_v<Type, Bool>) {
    return hash % 2;
  } else if constexpr (std::is_floating_point_v<typename Type::A>) {
    // Magnitudes from 1/4 to 4 with either sign. Zero is excluded: a minimum may return either
    // zero.
    const double size = std::ldexp(static_cast<double>(hash >> 11 | 1), -53) * 3.75 + 0.25;
    return Type::Narrow(static_cast<typename Type::A>(hash % 2 == 0 ? size : -size));
  } else {
    return static_cast<typename Type::S>(hash);
  }
}

template <typename Type>
Bytes ValuesAs(
    Values values, ReduceOp op, uint64_t seed, int rank, uint64_t first, uint64_t count) {
  using S = typename Type::S;
  Bytes bytes(count * sizeof(S));
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t hash = Hash(seed, static_cast<uint64_t>(rank), first + i);
    const S value = values == Values::kExact ? ExactValue<Type>(hash, op) : AnyValue<Type>(hash);
    std::memcpy(bytes.data() + i * sizeof(S), &value, sizeof(S));
  }
  return bytes;
}

// Calls `body` with the type that represents `dtype`.
template <typename Body>
Bytes WithType(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kU8: return body(Plain<uint8_t>());
    case DType::kI8: return body(Plain<int8_t>());
    case DType::kU16: return body(Plain<uint16_t>());
    case DType::kI16: return body(Plain<int16_t>());
    case DType::kU32: return body(Plain<uint32_t>());
    case DType::kI32: return body(Plain<int32_t>());
    case DType::kU64: return body(Plain<uint64_t>());
    case DType::kI64: return body(Plain<int64_t>());
    case DType::kF16: return body(Half());
    case DType::kBF16: return body(BFloat16());
    case DType::kF32: return body(Plain<float>());
    case DType::kF64: return body(Plain<double>());
    case DType::kBool: return body(Bool());
  }
  return {};
}

}  // namespace

// Applies the finalizer of splitmix64 (Steele, Lea, Flood 2014) once per argument.
uint64_t Hash(uint64_t seed, uint64_t a, uint64_t b) {
  const auto mix = [](uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  };
  return mix(mix(mix(seed) ^ a) ^ b);
}

Bytes MakeValues(
    Values values, DType dtype, ReduceOp op, uint64_t seed, int rank, uint64_t first,
    uint64_t count) {
  return WithType(dtype, [&](auto type) {
    return ValuesAs<decltype(type)>(values, op, seed, rank, first, count);
  });
}

Bytes Reduced(const std::vector<Bytes>& inputs, DType dtype, ReduceOp op, Scale scale) {
  return WithType(dtype, [&](auto type) { return ReducedAs<decltype(type)>(inputs, op, scale); });
}

}  // namespace dtrun::testing
