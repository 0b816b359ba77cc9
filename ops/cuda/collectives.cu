// The kernels of collectives on GPUs: a meeting of the ranks of a host, copies, and a reduction.
//
// At a meeting, a rank writes into the memory of other ranks, and waits until other ranks have
// written into its own memory. After it, the rank sees everything that those ranks wrote in their
// streams before the meeting. What one rank tells another is numbered, and stays in place until
// number + kToldKept. A rank tells another rank at most three times without hearing from it: at a
// meeting of both, after it has taken data, and at the first meeting of the next call.
//
// If a rank finds that the calls differ, or if its host ends its wait, it poisons the memory of all
// ranks. Kernels of a poisoned rank do nothing.
//
// A reduction has the arithmetic of ops/reduce/reduce.h. The results have the same bits, except for
// the payload of a NaN. So this file is compiled without contracting products and sums
// (-fmad=false). A contracted product and sum would round once where the CPU rounds twice.

#include <type_traits>

#include "gpu/kernel.h"
#include "ops/cuda/kernel_args.h"

namespace dtrun::ops::cuda {
namespace {

// A volatile store, not a release: the host reads no other data by it.
__device__ inline void TellHost(uint32_t& word, uint32_t value) {
  *const_cast<volatile uint32_t*>(&word) = value;
}

// What the threads of a meeting have found, in shared memory.
struct Found {
  Poison poison;
  uint32_t poisoned;  // not 0 if another rank has found it
};

__device__ inline void Tell(const MeetArgs& args, int peer) {
  const uint32_t number = ++args.meetings[args.rank]->told[peer];
  Told& told = args.meetings[peer]->told_by[number % kToldKept][args.rank];
  told.state = args.state;
  told.bytes = args.sends[peer];
  told.call = args.call;
  gpu::StoreRelease(&told.number, number);
}

__device__ inline void Hear(const MeetArgs& args, int peer, Found& found) {
  Meetings& mine = *args.meetings[args.rank];
  const uint32_t number = ++mine.heard[peer];
  Told& told = mine.told_by[number % kToldKept][peer];
  for (uint32_t looks = 1; gpu::LoadAcquire(&told.number) != number; ++looks) {
    gpu::Relax(20);
    if (looks % 16 != 0) continue;
    uint32_t failure = gpu::LoadAcquire(&mine.poison.failure);
    if (failure != kNone) {
      found.poisoned = 1;
    } else if (looks % 256 == 0) {
      // The flag lies in host memory, which is slow to read.
      failure = gpu::LoadAcquire(&args.report->abort);
      if (failure != kNone) atomicOr(&found.poison.missing, 1u << peer);
    }
    if (failure == kNone) continue;
    found.poison.failure = failure;
    return;
  }
  found.poison.calls[peer] = told.call;
  if (told.state != args.state || told.bytes != args.receives[peer])
    found.poison.failure = kDisagreed;
}

__device__ inline void Write(const Poison& from, Poison& to, int size) {
  for (int r = 0; r < size; ++r) to.calls[r] = from.calls[r];
  to.by = from.by;
  to.missing = from.missing;
  __threadfence_system();
  gpu::StoreRelease(&to.failure, from.failure);
}

template <typename Word>
__device__ void CopyWords(const CopyArgs::Piece& piece, uint64_t begin, uint64_t end) {
  for (uint64_t i = begin / sizeof(Word) + gpu::FirstItem(); i < end / sizeof(Word);
       i += gpu::ItemStride())
    reinterpret_cast<Word*>(piece.to)[i] = reinterpret_cast<const Word*>(piece.from)[i];
}

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

// The arithmetic of a reduction: what elements are multiplied by, and the tree of ops/reduce.
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

template <typename Type>
__device__ void ReduceArrays(const ReduceArgs& args) {
  if (args.failure != nullptr && gpu::LoadAcquire(args.failure) != kNone) return;
  const Reduction reduction = {args.before, args.after,  args.scaled,  args.divisor,
                               args.op,     args.inputs, args.combines};
  const auto input = [&](int k) {
    return args.arrays == nullptr ? args.at[k] + args.offset
                                  : args.arrays + static_cast<uint64_t>(k) * args.stride;
  };
  Reduce<Type>(reduction, input, args.output, gpu::FirstItem(), gpu::ItemStride(), args.count);
}

}  // namespace
}  // namespace dtrun::ops::cuda

// Runs as one block of kMostRanks threads. Thread p tells and hears rank p.
DTRUN_KERNEL(dtrun_meet, dtrun::ops::cuda::MeetArgs) {
  using namespace dtrun::ops::cuda;
  __shared__ Found found[1];
  Meetings& mine = *args.meetings[args.rank];
  const int peer = static_cast<int>(threadIdx.x);
  Poison& poison = found[0].poison;
  if (peer == args.rank) {
    found[0].poisoned = poison.failure = dtrun::gpu::LoadAcquire(&mine.poison.failure);
    poison.missing = 0;
    poison.by = static_cast<uint32_t>(peer);
    TellHost(args.report->begun, mine.held + 1);
  }
  poison.calls[peer] = args.call;
  __syncthreads();
  if (found[0].poisoned == 0) {
    if ((args.tells >> peer & 1) != 0) Tell(args, peer);
    if ((args.hears >> peer & 1) != 0) Hear(args, peer, found[0]);
  }
  __syncthreads();
  if (poison.failure != kNone && found[0].poisoned == 0 && peer < args.size)
    Write(poison, args.meetings[peer]->poison, args.size);
  __syncthreads();
  if (peer != args.rank) return;
  if (poison.failure != kNone) Write(mine.poison, args.report->poison, args.size);
  TellHost(args.report->ended, ++mine.held);
}

// Copies in words of 16 or 4 bytes if both addresses are aligned to them.
DTRUN_KERNEL(dtrun_copy, dtrun::ops::cuda::CopyArgs) {
  using namespace dtrun::ops::cuda;
  if (dtrun::gpu::LoadAcquire(args.failure) != kNone) return;
  for (uint64_t k = 0; k < args.count; ++k) {
    const CopyArgs::Piece& piece = args.pieces[k];
    const uint64_t odd =
        reinterpret_cast<uint64_t>(piece.to) | reinterpret_cast<uint64_t>(piece.from);
    const uint64_t word = odd % 16 == 0 ? 16 : odd % 4 == 0 ? 4 : 1;
    const uint64_t whole = piece.bytes / word * word;
    if (word == 16) CopyWords<uint4>(piece, 0, whole);
    if (word == 4) CopyWords<uint32_t>(piece, 0, whole);
    CopyWords<uint8_t>(piece, word == 1 ? 0 : whole, piece.bytes);
  }
}

#define DTRUN_REDUCE_KERNEL(name, Type)                             \
  DTRUN_KERNEL(dtrun_reduce_##name, dtrun::ops::cuda::ReduceArgs) { \
    dtrun::ops::cuda::ReduceArrays<dtrun::ops::cuda::Type>(args);   \
  }
DTRUN_REDUCE_KERNEL(u8, Plain<uint8_t>)
DTRUN_REDUCE_KERNEL(i8, Plain<int8_t>)
DTRUN_REDUCE_KERNEL(u16, Plain<uint16_t>)
DTRUN_REDUCE_KERNEL(i16, Plain<int16_t>)
DTRUN_REDUCE_KERNEL(u32, Plain<uint32_t>)
DTRUN_REDUCE_KERNEL(i32, Plain<int32_t>)
DTRUN_REDUCE_KERNEL(u64, Plain<uint64_t>)
DTRUN_REDUCE_KERNEL(i64, Plain<int64_t>)
DTRUN_REDUCE_KERNEL(f16, Float16)
DTRUN_REDUCE_KERNEL(bf16, BFloat16)
DTRUN_REDUCE_KERNEL(f32, Plain<float>)
DTRUN_REDUCE_KERNEL(f64, Plain<double>)
DTRUN_REDUCE_KERNEL(bool, Bool)
