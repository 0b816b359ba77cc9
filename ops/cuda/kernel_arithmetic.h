#ifndef DTRUN_OPS_CUDA_KERNEL_ARITHMETIC_H_
#define DTRUN_OPS_CUDA_KERNEL_ARITHMETIC_H_

// The arithmetic of ops/reduce/reduce.h, for kernels. The results have the same bits, except for
// the payload of a NaN. Files that include this header are compiled without contracting products
// and sums (-fmad=false). A contracted product and sum would round once where the CPU rounds twice.

#include <type_traits>

#include "gpu/kernel.h"

namespace dtrun::ops::cuda {

// The type S in which a dtype is stored, and the type A in which it is accumulated.
template <typename T>
struct Plain {
  using S = T;
  using A = T;
  __device__ static A Widen(S value) { return value; }
  __device__ static S Narrow(A value) { return value; }
};

struct Float16 {
  using S = uint16_t;
  using A = float;
  __device__ static float Widen(uint16_t value) {
    __half_raw raw;
    raw.x = value;
    return __half2float(__half(raw));
  }
  __device__ static uint16_t Narrow(float value) {
    return static_cast<__half_raw>(__float2half_rn(value)).x;
  }
};

struct BFloat16 {
  using S = uint16_t;
  using A = float;
  __device__ static float Widen(uint16_t value) {
    __nv_bfloat16_raw raw;
    raw.x = value;
    return __bfloat162float(__nv_bfloat16(raw));
  }
  __device__ static uint16_t Narrow(float value) {
    return static_cast<__nv_bfloat16_raw>(__float2bfloat16_rn(value)).x;
  }
};

// Multiplies a value by a factor: floats in their own arithmetic, integers in f64. An integer
// result is truncated toward zero and kept inside the type.
__device__ inline float Scaled(float value, double factor) {
  return value * static_cast<float>(factor);
}
__device__ inline double Scaled(double value, double factor) { return value * factor; }
template <typename A>
__device__ A Scaled(A value, double factor) {
  constexpr bool kSigned = static_cast<A>(-1) < static_cast<A>(1);
  constexpr A kLeast =
      kSigned ? static_cast<A>(uint64_t{1} << (8 * sizeof(A) - 1)) : static_cast<A>(0);
  constexpr A kMost = static_cast<A>(~kLeast);
  constexpr double kBeyond = 2.0 * (static_cast<double>(kMost / 2) + 1.0);
  if (factor == 1.0) return value;
  const double scaled = static_cast<double>(value) * factor;
  if (scaled >= kBeyond) return kMost;
  return scaled > static_cast<double>(kLeast) ? static_cast<A>(scaled) : kLeast;
}

// An op. Combine joins two values. Finish turns the combined value into the result: Average
// divides, other numeric ops change no bit.
struct Sum {
  // Integers wrap.
  template <typename A>
  __device__ static A Combine(A a, A b) {
    if constexpr (std::is_integral_v<A>) {
      return static_cast<A>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    } else {
      return a + b;
    }
  }
  template <typename A>
  __device__ static A Finish(A value, int) {
    return value;
  }
};

struct Average : Sum {
  __device__ static float Finish(float value, int divisor) {
    return value * (1.0f / static_cast<float>(divisor));
  }
  __device__ static double Finish(double value, int divisor) { return value * (1.0 / divisor); }
  // The CPU divides narrow integers in floating point. This quotient is the same.
  template <typename A>
  __device__ static A Finish(A value, int divisor) {
    if constexpr (sizeof(A) < 4) {
      return static_cast<A>(static_cast<int>(value) / divisor);
    } else {
      return static_cast<A>(value / static_cast<A>(divisor));
    }
  }
};

// A NaN wins. No comparison with a NaN holds, so a NaN in `a` stays without a test.
struct Min : Sum {
  template <typename A>
  __device__ static A Combine(A a, A b) {
    const A least = b < a ? b : a;
    return b != b ? b : least;
  }
};

struct Max : Sum {
  template <typename A>
  __device__ static A Combine(A a, A b) {
    const A most = a < b ? b : a;
    return b != b ? b : most;
  }
};

struct Product : Sum {
  template <typename A>
  __device__ static A Combine(A a, A b) {
    if constexpr (std::is_integral_v<A>) {
      return static_cast<A>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    } else {
      return a * b;
    }
  }
};

struct Or {
  __device__ static uint8_t Combine(uint8_t a, uint8_t b) {
    return static_cast<uint8_t>((a != 0) | (b != 0));
  }
  __device__ static uint8_t Finish(uint8_t value, int) { return static_cast<uint8_t>(value != 0); }
};

struct And {
  __device__ static uint8_t Combine(uint8_t a, uint8_t b) {
    return static_cast<uint8_t>((a != 0) & (b != 0));
  }
  __device__ static uint8_t Finish(uint8_t value, int) { return static_cast<uint8_t>(value != 0); }
};

struct Bool : Plain<uint8_t> {};

/// The arithmetic of a reduction: what elements are multiplied by, and the tree of ops/reduce.
struct Reduction {
  double before, after;
  int32_t scaled, divisor;
  int32_t op;  // of dtrun/types.h
  int32_t inputs;
  const uint8_t* combines;  // by input: combinations of the last two values after it
};

// Reduces elements `first`, `first` + `stride` and so on, below `count`. `input(k)` is the address
// of input k. A value waits in `waiting` until its partner in the tree has come.
template <typename Type, typename Op, typename Inputs>
__device__ void ReduceElements(
    const Reduction& reduction, const Inputs& input, char* output, uint64_t first, uint64_t stride,
    uint64_t count) {
  using S = typename Type::S;
  using A = typename Type::A;
  const bool scaled = reduction.scaled != 0;
  for (uint64_t i = first; i < count; i += stride) {
    A waiting[12];
    int top = 0;
    for (int k = 0; k < reduction.inputs; ++k) {
      const A value = Type::Widen(reinterpret_cast<const S*>(input(k))[i]);
      waiting[top++] = scaled ? Scaled(value, reduction.before) : value;
      for (int n = reduction.combines[k]; n > 0; --n) {
        --top;
        waiting[top - 1] = Op::Combine(waiting[top - 1], waiting[top]);
      }
    }
    const A result = Op::Finish(waiting[0], reduction.divisor);
    reinterpret_cast<S*>(output)[i] =
        Type::Narrow(scaled ? Scaled(result, reduction.after) : result);
  }
}

// The cases are the numbers of DTRUN_SUM ... DTRUN_PRODUCT.
template <typename Type, typename... Arguments>
__device__ void Reduce(const Reduction& reduction, const Arguments&... arguments) {
  if constexpr (std::is_same_v<Type, Bool>) {
    // With a single input, too, the result is 0 or 1 for every op.
    const bool all = reduction.op == 2 || reduction.op == 4;  // min, product
    if (all) return ReduceElements<Type, And>(reduction, arguments...);
    ReduceElements<Type, Or>(reduction, arguments...);
  } else {
    switch (reduction.op) {
      case 0: return ReduceElements<Type, Sum>(reduction, arguments...);
      case 1: return ReduceElements<Type, Average>(reduction, arguments...);
      case 2: return ReduceElements<Type, Min>(reduction, arguments...);
      case 3: return ReduceElements<Type, Max>(reduction, arguments...);
      case 4: return ReduceElements<Type, Product>(reduction, arguments...);
    }
  }
}

}  // namespace dtrun::ops::cuda

// Calls X(name, Type) for each type that can be reduced.
#define DTRUN_FOR_EACH_REDUCED_TYPE(X)      \
  X(u8, dtrun::ops::cuda::Plain<uint8_t>)   \
  X(i8, dtrun::ops::cuda::Plain<int8_t>)    \
  X(u16, dtrun::ops::cuda::Plain<uint16_t>) \
  X(i16, dtrun::ops::cuda::Plain<int16_t>)  \
  X(u32, dtrun::ops::cuda::Plain<uint32_t>) \
  X(i32, dtrun::ops::cuda::Plain<int32_t>)  \
  X(u64, dtrun::ops::cuda::Plain<uint64_t>) \
  X(i64, dtrun::ops::cuda::Plain<int64_t>)  \
  X(f16, dtrun::ops::cuda::Float16)         \
  X(bf16, dtrun::ops::cuda::BFloat16)       \
  X(f32, dtrun::ops::cuda::Plain<float>)    \
  X(f64, dtrun::ops::cuda::Plain<double>)   \
  X(bool, dtrun::ops::cuda::Bool)

#endif
