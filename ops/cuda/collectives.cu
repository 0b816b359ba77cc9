// Every collective is one kernel on each rank. The kernels of all ranks meet (block_meeting.h).
// Data goes from rank to rank through staging memory, in rounds:
//
//   - Each block copies its piece of its rank's data into the staging memory of its rank.
//   - The blocks with the same number of all ranks meet.
//   - Each block reads its piece from the staging memory of the other ranks. A reduction combines
//     the pieces of all ranks, so all ranks compute the same bits.
//
// Little data takes one round, and so one meeting.

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

template <typename Word>
__device__ void CopyWords(char* to, const char* from, uint64_t count, Lanes lanes) {
  for (uint64_t i = lanes.mine; i < count; i += lanes.count)
    reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
}

// Copies in words of 16 or 4 bytes if both addresses are aligned to them.
__device__ void CopyBytes(char* to, const char* from, uint64_t bytes, Lanes lanes) {
  if (to == from) return;
  const uint64_t odd = reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from);
  uint64_t whole = 0;
  if (odd % 16 == 0) {
    whole = bytes / 16 * 16;
    CopyWords<uint4>(to, from, whole / 16, lanes);
  } else if (odd % 4 == 0) {
    whole = bytes / 4 * 4;
    CopyWords<uint32_t>(to, from, whole / 4, lanes);
  }
  CopyWords<uint8_t>(to + whole, from + whole, bytes - whole, lanes);
}

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
    if (round == 0) KeepOwn(meeting);
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

 private:
  // Copies the part that stays on this rank.
  __device__ static void KeepOwn(const Meeting& meeting) {
    const CollectiveArgs& args = meeting.args();
    CopyBytes(
        args.output + args.receives[meeting.rank()].begin,
        args.input + args.sends[meeting.rank()].begin, args.receives[meeting.rank()].bytes,
        OfKernel());
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
    const Reduction reduction = {args.before, args.after,     args.scaled,  args.divisor,
                                 args.op,     meeting.size(), args.combines};
    const auto input = [&](int k) { return meeting.last_stage(k) + (from - begin); };
    Reduce<Type>(
        reduction, input, args.output + (from - args.wanted.begin), threadIdx.x, blockDim.x,
        (to - from) / sizeof(typename Type::S));
  }
};

// If `checks_counts` is set, only the two ranks of a transfer know its count. No rank then touches
// its output before the second meeting. At that meeting, every rank has checked its counts.
template <typename Kind>
__device__ void Run(const CollectiveArgs& args, BlockState& state) {
  Meeting meeting(args, state);
  const bool checks_counts = args.checks_counts != 0;
  if (!checks_counts) Kind::Stage(meeting, 0);
  if (!meeting.Open()) return;
  for (uint64_t round = 0; round < state.rounds; ++round) {
    if (round > 0 || checks_counts) {
      Kind::Stage(meeting, round);
      if (!meeting.Meet()) return;
    }
    Kind::Take(meeting, round);
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
#define DTRUN_REDUCTION_KERNEL(name, Type) DTRUN_COLLECTIVE_KERNEL(reduce_##name, Combine<Type>)

DTRUN_COLLECTIVE_KERNEL(move, Move)
DTRUN_FOR_EACH_REDUCED_TYPE(DTRUN_REDUCTION_KERNEL)
