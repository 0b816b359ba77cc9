#ifndef DTRUN_OPS_CUDA_BLOCK_MEETING_H_
#define DTRUN_OPS_CUDA_BLOCK_MEETING_H_

// Meetings of thread blocks across the kernels of all ranks. Block b of a rank meets block b of
// every other rank, and no other block. At a meeting, a block writes a record into the memory of
// every other rank. Then it waits for the other ranks' records in its own memory. A record carries
// an epoch: the number of meetings of its block so far.
//
// No block waits for another block of its own kernel, so the blocks of a kernel may run one after
// the other. The blocks with the same number on all ranks must be able to run at the same time.
//
// Records and staging memory are double-buffered: the last bit of the epoch selects one of two
// turns. A block writes the data of epoch e + 2 only after all ranks have told it epoch e + 1. By
// then, they have read its data of epoch e.

#include "gpu/kernel.h"
#include "ops/cuda/kernel_protocol.h"

namespace dtrun::ops::cuda {

/// The state of a block during a call, in the block's shared memory.
struct BlockState {
  Record heard[kMostRanks];  // the first record of each rank, this rank included
  uint64_t rounds;           // of the call
  uint32_t failure;
  uint32_t missing;
  bool tells;  // whether this block reports the failure to all ranks
};

class Meeting {
 public:
  __device__ Meeting(const CollectiveArgs& args, BlockState& state)
      : args_(args),
        group_(args.group),
        state_(state),
        epoch_(arena(group_.rank).epochs[blockIdx.x]) {
    if (threadIdx.x != 0) return;
    state_.failure = kNone;
    state_.missing = 0;
    if (blockIdx.x == 0) arena(group_.rank).begun = epoch_ + 1;
  }

  __device__ const CollectiveArgs& args() const { return args_; }
  __device__ BlockState& state() const { return state_; }
  __device__ int rank() const { return group_.rank; }
  __device__ int size() const { return group_.size; }

  /// Staging memory of this rank for the next meeting, and of rank `rank` for the last meeting.
  __device__ char* next_stage() const { return Stage(group_.rank, epoch_ + 1); }
  __device__ const char* last_stage(int rank) const { return Stage(rank, epoch_); }

  /// Holds the first meeting of a call and then sets `rounds` in the state, the same on all ranks.
  /// Returns false if the call has failed; the block then leaves.
  __device__ bool Open() {
    if (!Meet(true)) return false;
    if (threadIdx.x == 0) CountRounds();
    __syncthreads();
    return true;
  }

  /// Holds a further meeting: all earlier work of the blocks with this number is complete after it.
  /// Returns false as Open does.
  __device__ bool Meet() { return Meet(false); }

  __device__ void Close() {
    __syncthreads();
    if (threadIdx.x != 0) return;
    Arena& mine = arena(group_.rank);
    mine.epochs[blockIdx.x] = epoch_;
    __threadfence();
    if (atomicAdd(&mine.finished, 1u) + 1 < gridDim.x) return;
    __threadfence();
    mine.finished = 0;
    TellHost(group_.report->ended, gpu::LoadAcquire(&mine.begun));
  }

 private:
  __device__ Arena& arena(int rank) const { return *reinterpret_cast<Arena*>(group_.arenas[rank]); }
  __device__ Record& RecordOf(int owner, int from) const {
    return *reinterpret_cast<Record*>(
        group_.arenas[owner] +
        RecordOffset(group_.size, group_.most_blocks, epoch_ & 1, blockIdx.x, from));
  }
  __device__ char* Stage(int rank, uint32_t epoch) const {
    return group_.arenas[rank] +
           StageOffset(group_.size, group_.most_blocks, epoch & 1, blockIdx.x);
  }

  // A volatile store, not a release: the host reads no other data by it, so no thread has to wait
  // for its earlier writes.
  __device__ static void TellHost(uint32_t& word, uint32_t value) {
    *const_cast<volatile uint32_t*>(&word) = value;
  }

  // Thread `peer` of the block exchanges records with rank `peer`.
  __device__ bool Meet(bool first) {
    ++epoch_;
    __syncthreads();
    const int peer = static_cast<int>(threadIdx.x);
    if (peer < group_.size && peer != group_.rank) {
      Tell(peer, first);
      Hear(peer, first);
    }
    if (first && peer == group_.rank) Fill(state_.heard[peer], peer);
    // A block that comes to a failed group leaves, even if all peers have told it their records.
    if (peer == group_.size) {
      if (first && blockIdx.x == 0) TellHost(group_.report->begun, epoch_);
      const uint32_t failure = gpu::LoadAcquire(&arena(group_.rank).poison.failure);
      if (failure != kNone) state_.failure = failure;
    }
    __syncthreads();
    if (state_.failure == kNone) return true;
    Leave();
    return false;
  }

  // Writes all fields but the epoch. Peers wait for the epoch, so it is stored last.
  __device__ void Fill(Record& record, int peer) const {
    record.signature = args_.signature;
    record.bytes = args_.sends[peer].bytes;
    record.most = args_.most;
    record.call = args_.call;
  }

  __device__ void Tell(int peer, bool first) {
    Record& record = RecordOf(peer, group_.rank);
    if (first) Fill(record, peer);
    gpu::StoreRelease(&record.epoch, epoch_);
  }

  __device__ void Hear(int peer, bool first) {
    Record& from = RecordOf(group_.rank, peer);
    Poison& poison = arena(group_.rank).poison;
    for (uint32_t looks = 1; gpu::LoadAcquire(&from.epoch) != epoch_; ++looks) {
      gpu::Relax(20);
      if (looks % 16 != 0) continue;
      uint32_t failure = gpu::LoadAcquire(&poison.failure);
      if (failure == kNone && looks % 256 == 0) {
        // The flag lies in host memory, which is slow to read.
        failure = gpu::LoadAcquire(&group_.report->abort);
        if (failure != kNone) atomicOr(&state_.missing, 1u << peer);
      }
      if (failure == kNone) continue;
      state_.failure = failure;
      return;
    }
    if (!first) return;
    const Record heard = from;
    state_.heard[peer] = heard;
    if (heard.signature != args_.signature || heard.bytes != args_.receives[peer].bytes)
      state_.failure = kDisagreed;
  }

  __device__ void CountRounds() {
    uint64_t most = 0;
    for (int r = 0; r < group_.size; ++r)
      most = most < state_.heard[r].most ? state_.heard[r].most : most;
    const uint64_t in_a_round = args_.piece_bytes * gridDim.x;
    state_.rounds = most == 0 ? 1 : (most + in_a_round - 1) / in_a_round;
  }

  // Writes the failure into the arenas of all ranks, unless this rank's arena holds a failure
  // already. Then reports the failure to this rank's host.
  __device__ void Leave() {
    const int peer = static_cast<int>(threadIdx.x);
    Poison& mine = arena(group_.rank).poison;
    if (peer == 0) state_.tells = gpu::LoadAcquire(&mine.failure) == kNone;
    __syncthreads();
    if (state_.tells && peer < group_.size) {
      Poison& poison = arena(peer).poison;
      for (int r = 0; r < group_.size; ++r)
        poison.calls[r] = r == group_.rank ? args_.call : state_.heard[r].call;
      poison.by = static_cast<uint32_t>(group_.rank);
      poison.missing = state_.missing;
      gpu::StoreRelease(&poison.failure, state_.failure);
    }
    __syncthreads();
    if (peer != 0) return;
    const uint32_t failure = gpu::LoadAcquire(&mine.failure);
    Poison& report = group_.report->poison;
    for (int r = 0; r < group_.size; ++r) report.calls[r] = mine.calls[r];
    report.by = mine.by;
    report.missing = mine.missing;
    gpu::StoreRelease(&report.failure, failure);
  }

  const CollectiveArgs& args_;
  const Group& group_;
  BlockState& state_;
  uint32_t epoch_;
};

}  // namespace dtrun::ops::cuda

#endif
