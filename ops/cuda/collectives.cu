// Every collective is one kernel on each rank. The kernels of all ranks meet (block_meeting.h).
// Data goes from rank to rank in one of three ways:
//
//   staged  For little data. Each block copies its rank's data into staging memory before the ranks
//           meet. After the meeting, it reads its part from the staging memory of the other ranks.
//           There is one meeting in all. For reductions, this is the one-shot all-reduce.
//           "Latency-optimal allreduce and CUDA graph optimization" (vLLM, 2023) describes it and
//           the next way.
//   direct  For much data, in memory that all ranks reach. The ranks meet, read each other's
//           buffers (and write results there), and meet again. An all_reduce is a reduce-scatter
//           and an all-gather in one pass: each rank computes its share of the result for all
//           ranks. This is the two-shot all-reduce of GPUs, after Thakur, Rabenseifner and Gropp,
//           "Optimization of Collective Communication Operations in MPICH" (2005), section 4. Two
//           ranks on one GPU read 2 N bytes and write 2 N.
//   rounds  For other memory. The ranks repeat the staged way for one piece after another.
//
// All ranks choose the same way from the records that they exchange at the first meeting.

#include <type_traits>

#include "gpu/kernel.h"
#include "ops/cuda/block_meeting.h"
#include "ops/cuda/kernel_arithmetic.h"
#include "ops/cuda/kernel_protocol.h"

namespace dtrun::ops::cuda {
namespace {

// The threads that share a piece of work: this thread's index and their number. They are the
// threads of a block, or of all blocks of a kernel.
struct Lanes {
  uint64_t mine, count;
};
__device__ inline Lanes OfBlock() { return {threadIdx.x, blockDim.x}; }
__device__ inline Lanes OfKernel() { return {gpu::FirstItem(), gpu::ItemStride()}; }

__device__ inline uint64_t Least(uint64_t a, uint64_t b) { return a < b ? a : b; }

// --- copies -------------------------------------------------------------------------------------

template <typename Word, int kAtOnce>
__device__ void CopyWords(char* to, const char* from, uint64_t count, Lanes lanes) {
  auto* target = reinterpret_cast<Word*>(to);
  const auto* source = reinterpret_cast<const Word*>(from);
  uint64_t i = lanes.mine;
  for (; i + (kAtOnce - 1) * lanes.count < count; i += kAtOnce * lanes.count) {
    Word words[kAtOnce];
    for (int k = 0; k < kAtOnce; ++k) words[k] = source[i + k * lanes.count];
    for (int k = 0; k < kAtOnce; ++k) target[i + k * lanes.count] = words[k];
  }
  for (; i < count; i += lanes.count) target[i] = source[i];
}

// Copies in the largest words that both addresses are aligned to.
__device__ void CopyBytes(char* to, const char* from, uint64_t bytes, Lanes lanes) {
  if (to == from) return;
  const uint64_t odd = reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from);
  uint64_t whole = 0;
  if (odd % 16 == 0) {
    whole = bytes / 16 * 16;
    CopyWords<uint4, 4>(to, from, whole / 16, lanes);
  } else if (odd % 4 == 0) {
    whole = bytes / 4 * 4;
    CopyWords<uint32_t, 4>(to, from, whole / 4, lanes);
  } else if (odd % 2 == 0) {
    whole = bytes / 2 * 2;
    CopyWords<uint16_t, 4>(to, from, whole / 2, lanes);
  }
  CopyWords<uint8_t, 1>(to + whole, from + whole, bytes - whole, lanes);
}

// --- data movement ------------------------------------------------------------------------------

// The offset, in each piece that goes from rank to rank, of the bytes that this block stages in a
// round.
__device__ inline uint64_t BlockBegin(const CollectiveArgs& args, uint64_t round) {
  return (round * gridDim.x + blockIdx.x) * args.piece_bytes;
}

__device__ inline uint64_t BlockBytes(const CollectiveArgs& args, uint64_t round, uint64_t bytes) {
  const uint64_t begin = BlockBegin(args, round);
  return begin >= bytes ? 0 : Least(args.piece_bytes, bytes - begin);
}

// Moves data without arithmetic. Staging memory holds one piece for all ranks, or one piece per
// destination rank.
class Move {
 public:
  __device__ static void Stage(const Meeting& meeting, uint64_t round) {
    const CollectiveArgs& args = meeting.args();
    for (int i = 1; i < meeting.size(); ++i) {
      const int to = (meeting.rank() + i) % meeting.size();
      const Piece& piece = args.sends[to];
      const uint64_t slot = args.same_for_all ? 0 : static_cast<uint64_t>(to);
      CopyBytes(
          meeting.next_stage() + slot * args.piece_bytes,
          args.input + piece.begin + BlockBegin(args, round), BlockBytes(args, round, piece.bytes),
          OfBlock());
      if (args.same_for_all) return;
    }
  }

  __device__ static void Take(const Meeting& meeting, uint64_t round) {
    const CollectiveArgs& args = meeting.args();
    for (int i = 1; i < meeting.size(); ++i) {
      const int from = (meeting.rank() + i) % meeting.size();
      const Piece& piece = args.receives[from];
      const uint64_t slot = args.same_for_all ? 0 : static_cast<uint64_t>(meeting.rank());
      CopyBytes(
          args.output + piece.begin + BlockBegin(args, round),
          meeting.last_stage(from) + slot * args.piece_bytes, BlockBytes(args, round, piece.bytes),
          OfBlock());
    }
  }

  __device__ static void TakeDirectly(const Meeting& meeting) {
    const CollectiveArgs& args = meeting.args();
    for (int i = 1; i < meeting.size(); ++i) {
      const int from = (meeting.rank() + i) % meeting.size();
      const Piece& piece = args.receives[from];
      CopyBytes(args.output + piece.begin, meeting.state().inputs[from], piece.bytes, OfKernel());
    }
  }

  // Copies the part that stays on this rank.
  __device__ static void KeepOwn(const Meeting& meeting) {
    const CollectiveArgs& args = meeting.args();
    CopyBytes(
        args.output + args.receives[meeting.rank()].begin,
        args.input + args.sends[meeting.rank()].begin, args.receives[meeting.rank()].bytes,
        OfKernel());
  }
};

// --- reductions ---------------------------------------------------------------------------------

// The scale factors and the divisor of a reduction. A sum is an average with divisor 1.
template <typename Type>
struct Factors {
  double before, after;
  int divisor;
  bool scaled;
  __device__ explicit Factors(const CollectiveArgs& args)
      : before(args.before),
        after(args.after),
        divisor(args.op == kAverage ? args.divisor : 1),
        scaled(args.scaled != 0) {}
  __device__ typename Type::A Before(typename Type::S value) const {
    const typename Type::A wide = Type::Widen(value);
    return scaled ? Scaled(wide, before) : wide;
  }
  template <typename Op>
  __device__ typename Type::S Finished(typename Type::A value) const {
    const typename Type::A result = Op::Finish(value, divisor);
    return Type::Narrow(scaled ? Scaled(result, after) : result);
  }
};

// Combines values [0, kCount) in the tree of ops/reduce.
template <typename Op, int kCount, typename A>
__device__ A Tree(const A* values) {
  if constexpr (kCount == 1) {
    return values[0];
  } else {
    constexpr int kLeft = kCount - kCount / 2;
    return Op::Combine(Tree<Op, kLeft>(values), Tree<Op, kCount / 2>(values + kLeft));
  }
}

// Reduces any number of inputs, one element at a time. A value waits in `waiting` until its partner
// in the tree has come.
template <typename Type, typename Op>
__device__ void ReduceElements(
    const CollectiveArgs& args, const Ends& ends, uint64_t first, uint64_t count, Lanes lanes) {
  using S = typename Type::S;
  using A = typename Type::A;
  const Factors<Type> factors(args);
  for (uint64_t i = first + lanes.mine; i < count; i += lanes.count) {
    A waiting[8];
    int top = 0;
    for (int k = 0; k < ends.input_count; ++k) {
      waiting[top++] = factors.Before(reinterpret_cast<const S*>(ends.inputs[k])[i]);
      for (int n = args.combines[k]; n > 0; --n) {
        --top;
        waiting[top - 1] = Op::Combine(waiting[top - 1], waiting[top]);
      }
    }
    const S result = factors.template Finished<Op>(waiting[0]);
    for (int k = 0; k < ends.output_count; ++k) reinterpret_cast<S*>(ends.outputs[k])[i] = result;
  }
}

template <typename S>
union Vector {
  uint4 word;
  S elements[16 / sizeof(S)];
};

// Reduces kAtOnce vectors of 16 bytes of kInputs inputs: vectors `at`, `at` + `stride` and so on.
// All vectors are read before the first result is written.
template <typename Type, typename Op, int kInputs, int kAtOnce>
__device__ void ReduceVectorsAt(
    const Factors<Type>& factors, const uint4* const (&inputs)[kInputs], const Ends& ends,
    uint64_t at, uint64_t stride) {
  using S = typename Type::S;
  constexpr int kLanes = 16 / sizeof(S);
  Vector<S> values[kAtOnce][kInputs];
  for (int n = 0; n < kAtOnce; ++n) {
    for (int k = 0; k < kInputs; ++k) values[n][k].word = inputs[k][at + n * stride];
  }
  for (int n = 0; n < kAtOnce; ++n) {
    Vector<S> result;
    for (int e = 0; e < kLanes; ++e) {
      typename Type::A wide[kInputs];
      for (int k = 0; k < kInputs; ++k) wide[k] = factors.Before(values[n][k].elements[e]);
      result.elements[e] = factors.template Finished<Op>(Tree<Op, kInputs>(wide));
    }
    for (int k = 0; k < ends.output_count; ++k)
      reinterpret_cast<uint4*>(ends.outputs[k])[at + n * stride] = result.word;
  }
}

// Reduces all whole vectors. Returns the number of elements done.
template <typename Type, typename Op, int kInputs, int kAtOnce>
__device__ uint64_t
ReduceVectors(const CollectiveArgs& args, const Ends& ends, uint64_t count, Lanes lanes) {
  constexpr uint64_t kLanes = 16 / sizeof(typename Type::S);
  const Factors<Type> factors(args);
  const uint4* inputs[kInputs];
  for (int k = 0; k < kInputs; ++k) inputs[k] = reinterpret_cast<const uint4*>(ends.inputs[k]);
  const uint64_t vectors = count / kLanes;
  uint64_t at = lanes.mine;
  for (; at + (kAtOnce - 1) * lanes.count < vectors; at += kAtOnce * lanes.count)
    ReduceVectorsAt<Type, Op, kInputs, kAtOnce>(factors, inputs, ends, at, lanes.count);
  for (; at < vectors; at += lanes.count)
    ReduceVectorsAt<Type, Op, kInputs, 1>(factors, inputs, ends, at, lanes.count);
  return vectors * kLanes;
}

// The same for any number of inputs, which wait as in ReduceElements. The index into `waiting` is
// known only at run time, so the array lies in local memory, which the L1 cache holds. Four inputs
// are loaded at a time.
template <typename Type, typename Op>
__device__ uint64_t
ReduceVectorsOfAny(const CollectiveArgs& args, const Ends& ends, uint64_t count, Lanes lanes) {
  using S = typename Type::S;
  constexpr int kLanes = 16 / sizeof(S), kAtOnce = 4;
  const Factors<Type> factors(args);
  const uint64_t vectors = count / kLanes;
  for (uint64_t at = lanes.mine; at < vectors; at += lanes.count) {
    typename Type::A waiting[8][kLanes];
    int top = 0;
    for (int first = 0; first < ends.input_count; first += kAtOnce) {
      Vector<S> values[kAtOnce];
      for (int k = 0; k < kAtOnce; ++k) {
        if (first + k < ends.input_count)
          values[k].word = reinterpret_cast<const uint4*>(ends.inputs[first + k])[at];
      }
      for (int k = 0; k < kAtOnce; ++k) {
        if (first + k >= ends.input_count) break;
        for (int e = 0; e < kLanes; ++e) waiting[top][e] = factors.Before(values[k].elements[e]);
        ++top;
        for (int n = args.combines[first + k]; n > 0; --n) {
          --top;
          for (int e = 0; e < kLanes; ++e)
            waiting[top - 1][e] = Op::Combine(waiting[top - 1][e], waiting[top][e]);
        }
      }
    }
    Vector<S> result;
    for (int e = 0; e < kLanes; ++e)
      result.elements[e] = factors.template Finished<Op>(waiting[0][e]);
    for (int k = 0; k < ends.output_count; ++k)
      reinterpret_cast<uint4*>(ends.outputs[k])[at] = result.word;
  }
  return vectors * kLanes;
}

// Sums and averages of floats, which gradients need, use vectors if all addresses are aligned to 16
// bytes.
template <typename Type, typename Op, bool kVectors>
__device__ void Reduce(const CollectiveArgs& args, const Ends& ends, uint64_t count, Lanes lanes) {
  uint64_t done = 0;
  if constexpr (kVectors) {
    uint64_t odd = 0;
    for (int k = 0; k < ends.input_count; ++k) odd |= reinterpret_cast<uint64_t>(ends.inputs[k]);
    for (int k = 0; k < ends.output_count; ++k) odd |= reinterpret_cast<uint64_t>(ends.outputs[k]);
    if (odd % 16 == 0) {
      switch (ends.input_count) {
        case 2: done = ReduceVectors<Type, Op, 2, 4>(args, ends, count, lanes); break;
        case 4: done = ReduceVectors<Type, Op, 4, 2>(args, ends, count, lanes); break;
        case 8: done = ReduceVectors<Type, Op, 8, 1>(args, ends, count, lanes); break;
        default: done = ReduceVectorsOfAny<Type, Op>(args, ends, count, lanes);
      }
    }
  }
  ReduceElements<Type, Op>(args, ends, done, count, lanes);
}

template <typename Type>
struct ByOp {
  static constexpr bool kVectors = std::is_floating_point_v<typename Type::A>;

  __device__ static void Reduce(
      const CollectiveArgs& args, const Ends& ends, uint64_t count, Lanes lanes) {
    switch (args.op) {
      // For floats, an average with divisor 1 has the same bits: one instantiation less per type.
      case kSum:
        if constexpr (!kVectors) return cuda::Reduce<Type, Sum, false>(args, ends, count, lanes);
        [[fallthrough]];
      case kAverage: return cuda::Reduce<Type, Average, kVectors>(args, ends, count, lanes);
      case kMin: return cuda::Reduce<Type, Min, false>(args, ends, count, lanes);
      case kMax: return cuda::Reduce<Type, Max, false>(args, ends, count, lanes);
      case kProduct: return cuda::Reduce<Type, Product, false>(args, ends, count, lanes);
    }
  }
};

struct Bool : Plain<uint8_t> {};

template <>
struct ByOp<Bool> {
  __device__ static void Reduce(
      const CollectiveArgs& args, const Ends& ends, uint64_t count, Lanes lanes) {
    // With a single input, too, the result is 0 or 1 for every op.
    const bool all = args.op == kMin || args.op == kProduct;
    if (all) return cuda::Reduce<Plain<uint8_t>, And, false>(args, ends, count, lanes);
    cuda::Reduce<Plain<uint8_t>, Or, false>(args, ends, count, lanes);
  }
};

template <typename Type>
class Combine {
 public:
  __device__ static void Stage(const Meeting& meeting, uint64_t round) {
    const CollectiveArgs& args = meeting.args();
    CopyBytes(
        meeting.next_stage(), args.input + BlockBegin(args, round),
        BlockBytes(args, round, args.bytes), OfBlock());
  }

  // Reduces the part of the block's piece that this rank wants.
  __device__ static void Take(const Meeting& meeting, uint64_t round) {
    const CollectiveArgs& args = meeting.args();
    const uint64_t begin = BlockBegin(args, round);
    const uint64_t end = begin + BlockBytes(args, round, args.bytes);
    const uint64_t from = begin < args.wanted.begin ? args.wanted.begin : begin;
    const uint64_t to = Least(end, args.wanted.begin + args.wanted.bytes);
    if (from >= to) return;
    Ends& ends = meeting.state().ends;
    const int k = static_cast<int>(threadIdx.x);
    if (k < meeting.size()) ends.inputs[k] = meeting.last_stage(k) + (from - begin);
    if (k == 0) {
      ends.input_count = meeting.size();
      ends.output_count = 1;
      ends.outputs[0] = args.output + (from - args.wanted.begin);
    }
    __syncthreads();
    ByOp<Type>::Reduce(args, ends, (to - from) / sizeof(typename Type::S), OfBlock());
  }

  // Reduces this rank's share, for all ranks that want it.
  __device__ static void TakeDirectly(const Meeting& meeting) {
    const CollectiveArgs& args = meeting.args();
    const BlockState& state = meeting.state();
    Ends& ends = meeting.state().ends;
    const int k = static_cast<int>(threadIdx.x);
    if (k < meeting.size()) {
      ends.inputs[k] = state.inputs[k] + args.share.begin;
      if (args.target == Target::kAll) ends.outputs[k] = state.outputs[k] + args.share.begin;
    }
    if (k == 0) {
      ends.input_count = meeting.size();
      ends.output_count = args.target == Target::kAll ? meeting.size() : 1;
      if (args.target == Target::kRoot)
        ends.outputs[0] = state.outputs[args.root] + args.share.begin;
      if (args.target == Target::kOwn) ends.outputs[0] = args.output;
    }
    __syncthreads();
    ByOp<Type>::Reduce(args, ends, args.share.bytes / sizeof(typename Type::S), OfKernel());
  }

  __device__ static void KeepOwn(const Meeting&) {}
};

// If `checks_counts` is set, only the two ranks of a transfer know its count. No rank then touches
// its output before the second meeting. At that meeting, every rank has checked its counts.
template <typename Kind>
__device__ void Run(const CollectiveArgs& args, BlockState& state) {
  Meeting meeting(args, state);
  const bool checks_counts = args.checks_counts != 0;
  if (!checks_counts && (args.flags & kStaged) != 0) Kind::Stage(meeting, 0);
  if (!meeting.Open()) return;
  if (state.way == Way::kStaged && !checks_counts) {
    Kind::KeepOwn(meeting);
    Kind::Take(meeting, 0);
  } else if (state.way == Way::kDirect) {
    if (checks_counts && !meeting.Meet()) return;
    Kind::KeepOwn(meeting);
    Kind::TakeDirectly(meeting);
    if (!meeting.Meet()) return;
  } else {
    for (uint64_t round = 0; round < state.rounds; ++round) {
      Kind::Stage(meeting, round);
      if (!meeting.Meet()) return;
      if (round == 0) Kind::KeepOwn(meeting);
      Kind::Take(meeting, round);
    }
  }
  meeting.Close();
}

}  // namespace
}  // namespace dtrun::ops::cuda

#define DTRUN_COLLECTIVE_KERNEL(name, Kind)                                                \
  DTRUN_BOUNDED_KERNEL(                                                                    \
      dtrun_##name, dtrun::ops::cuda::CollectiveArgs, dtrun::ops::cuda::kMostThreads, 1) { \
    __shared__ dtrun::ops::cuda::BlockState state[1];                                      \
    dtrun::ops::cuda::Run<dtrun::ops::cuda::Kind>(args, state[0]);                         \
  }

DTRUN_COLLECTIVE_KERNEL(move, Move)
DTRUN_COLLECTIVE_KERNEL(reduce_u8, Combine<dtrun::ops::cuda::Plain<uint8_t>>)
DTRUN_COLLECTIVE_KERNEL(reduce_i8, Combine<dtrun::ops::cuda::Plain<int8_t>>)
DTRUN_COLLECTIVE_KERNEL(reduce_u16, Combine<dtrun::ops::cuda::Plain<uint16_t>>)
DTRUN_COLLECTIVE_KERNEL(reduce_i16, Combine<dtrun::ops::cuda::Plain<int16_t>>)
DTRUN_COLLECTIVE_KERNEL(reduce_u32, Combine<dtrun::ops::cuda::Plain<uint32_t>>)
DTRUN_COLLECTIVE_KERNEL(reduce_i32, Combine<dtrun::ops::cuda::Plain<int32_t>>)
DTRUN_COLLECTIVE_KERNEL(reduce_u64, Combine<dtrun::ops::cuda::Plain<uint64_t>>)
DTRUN_COLLECTIVE_KERNEL(reduce_i64, Combine<dtrun::ops::cuda::Plain<int64_t>>)
DTRUN_COLLECTIVE_KERNEL(reduce_f16, Combine<dtrun::ops::cuda::Float16>)
DTRUN_COLLECTIVE_KERNEL(reduce_bf16, Combine<dtrun::ops::cuda::BFloat16>)
DTRUN_COLLECTIVE_KERNEL(reduce_f32, Combine<dtrun::ops::cuda::Plain<float>>)
DTRUN_COLLECTIVE_KERNEL(reduce_f64, Combine<dtrun::ops::cuda::Plain<double>>)
DTRUN_COLLECTIVE_KERNEL(reduce_bool, Combine<dtrun::ops::cuda::Bool>)
