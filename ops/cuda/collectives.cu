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

#include "gpu/kernel.h"
#include "ops/cuda/kernel_args.h"
#include "ops/cuda/kernel_arithmetic.h"

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
    dtrun::ops::cuda::ReduceArrays<Type>(args);                     \
  }
DTRUN_FOR_EACH_REDUCED_TYPE(DTRUN_REDUCE_KERNEL)
