#ifndef DTRUN_OPS_CUDA_KERNEL_PROTOCOL_H_
#define DTRUN_OPS_CUDA_KERNEL_PROTOCOL_H_

// The data that the kernels of different ranks exchange, and that kernels share with their hosts.
// Plain data, for the host and for kernels.

#include <cstdint>

namespace dtrun::ops::cuda {

constexpr int kMostRanks = 32;
constexpr uint32_t kMostBlocks = 128;   // of a collective's kernel
constexpr uint32_t kMessageBlocks = 4;  // of a message's kernel
constexpr uint32_t kMostThreads = 512;
constexpr uint32_t kLeastThreads = 64;  // more than kMostRanks: one per peer, and one that watches
constexpr uint64_t kStageBytes = 32 << 10;  // for each block and turn

/// The message from a block of one rank (the writer) to the same block of another rank (the reader)
/// at a meeting. `epoch` is stored last.
struct alignas(64) Record {
  uint64_t signature;  // the digest of the call, the same on all ranks
  uint64_t bytes;      // of the writer's data for the reader
  uint64_t most;       // the most bytes that the writer has for any rank
  uint32_t call;       // the writer's number of the call
  uint32_t epoch;      // the number of meetings of the block
};

/// The reason why a group has ended.
enum Failure : uint32_t {
  kNone = 0,
  kDisagreed = 1,  // ranks have made different calls
  kTimedOut = 2,   // a rank has waited too long for others
  kLost = 3,       // a rank's host knows that others will not come
  // Only in a group that is one host's part of a larger group:
  kHostsDisagreed = 4,      // ranks of other hosts have made a different call
  kGaveUpAcross = 5,        // `by` has waited too long for ranks of other hosts
  kDisagreedElsewhere = 6,  // ranks of another host disagree among themselves
  kFailedElsewhere = 7,     // another host's group has failed in another way
};

/// The failure of a rank, in the arenas of all ranks. `failure` is stored last.
struct alignas(64) Poison {
  uint32_t calls[kMostRanks];  // by rank: the number of its call
  uint32_t by;                 // the rank that failed first
  uint32_t missing;            // a bit for each rank that did not come; or the number of a host
  uint32_t failure;
};

/// The start of each rank's memory that all ranks map. Records and staging memory follow.
struct alignas(64) Arena {
  Poison poison;
  uint32_t epochs[kMostBlocks];  // of the rank's own blocks
  uint32_t begun;                // as Report::begun
  uint32_t finished;             // the number of blocks that have finished the call
};

/// The offset, in the owner's arena, of the record that rank `from` writes for block `block` in
/// turn `turn`. The group has `size` ranks. Their kernels have at most `blocks` blocks.
constexpr uint64_t RecordOffset(
    int size, uint32_t blocks, uint32_t turn, uint32_t block, int from) {
  const uint64_t index =
      (static_cast<uint64_t>(turn) * blocks + block) * static_cast<uint64_t>(size) +
      static_cast<uint64_t>(from);
  return sizeof(Arena) + index * sizeof(Record);
}
/// The offset of the staging memory of block `block` in turn `turn`.
constexpr uint64_t StageOffset(int size, uint32_t blocks, uint32_t turn, uint32_t block) {
  return RecordOffset(size, blocks, 2, 0, 0) +
         (static_cast<uint64_t>(turn) * blocks + block) * kStageBytes;
}
constexpr uint64_t ArenaBytes(int size, uint32_t blocks) { return StageOffset(size, blocks, 2, 0); }

// A message between two ranks is a broadcast in a group of these two ranks, with the sender as rank
// 0. Each pair of ranks has one such group for each direction. Their arenas follow the arena of
// collectives.
enum Direction : int { kOut, kIn };
constexpr uint64_t ChannelOffset(int size, int peer, Direction direction) {
  return ArenaBytes(size, kMostBlocks) +
         static_cast<uint64_t>(2 * peer + direction) * ArenaBytes(2, kMessageBlocks);
}
constexpr uint64_t MemoryBytes(int size) { return ChannelOffset(size, size, kOut); }

/// The words between a rank's kernels and its host, in pinned host memory. The host polls them.
struct alignas(64) Report {
  uint32_t abort;         // a Failure, set by the host: kernels leave
  uint32_t begun, ended;  // block 0's epoch at the start of the last call that began, that ended
  Poison poison;          // why a kernel has left
};

/// A group as one of its ranks sees it.
struct Group {
  int32_t rank, size;
  uint32_t most_blocks;
  char* arenas[kMostRanks];  // by rank, as mapped on this rank
  Report* report;
};

/// Part of a buffer, in bytes.
struct Piece {
  uint64_t begin, bytes;
};

/// The arguments of a call, for every kernel of collectives.cu. Unused fields are zero.
struct CollectiveArgs {
  Group group;
  uint64_t signature;
  char* input;
  char* output;
  uint32_t call;
  // Whether every rank must check its peers' counts before any rank touches its output.
  int32_t checks_counts;
  uint64_t most;         // the most bytes that this rank has for any other rank
  uint64_t piece_bytes;  // the bytes of it that a block stages at a time

  // Data movement: the pieces to and from each rank.
  int32_t same_for_all;  // every rank gets the same piece
  Piece sends[kMostRanks];
  Piece receives[kMostRanks];

  // Reductions.
  uint64_t bytes;  // of the input
  Piece wanted;    // the part of the result that this rank gets
  int32_t op, divisor;
  int32_t scaled;
  double before, after;
  uint8_t combines[kMostRanks];  // by input: combinations of the last two values after it
};

/// The state of a host's group for the call under way, exchanged between hosts.
struct HostState {
  uint64_t signature;
  uint64_t failure;  // a Failure of this rank's group, or kNone
};

/// The arguments of the kernels of host_verdict.cu. Unused fields are zero.
struct VerdictArgs {
  Group group;
  HostState* states;  // this rank's state; or the states of all hosts
  int32_t hosts;
  uint32_t call;
  uint64_t signature;
};

static_assert(sizeof(CollectiveArgs) <= 4096, "what a kernel can be given");

}  // namespace dtrun::ops::cuda

#endif
