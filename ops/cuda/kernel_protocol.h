#ifndef DTRUN_OPS_CUDA_KERNEL_PROTOCOL_H_
#define DTRUN_OPS_CUDA_KERNEL_PROTOCOL_H_

// What the kernels of ranks say to each other, and what they share with their hosts. Plain data,
// for the host and for kernels alike.

#include <cstdint>

namespace dtrun::ops::cuda {

constexpr int kMostRanks = 32;
constexpr uint32_t kMostBlocks = 128;   // of a collective
constexpr uint32_t kMessageBlocks = 4;  // of a message
constexpr uint32_t kMostThreads = 512;
constexpr uint32_t kLeastThreads = 64;  // more than kMostRanks: one for each peer, one that watches
constexpr uint64_t kStageBytes = 32 << 10;  // of a block, for one of two turns
constexpr int kMostRegions = 1024;

// Memory that peers can reach, numbered alike on all ranks. What they add to an address of the
// owner's stands in Group::offsets.
enum Region : uint16_t {
  kUnreachable = 0,
  kSameAddress = 1,  // the ranks are threads of one process and share the GPU
  kFirstAllocated = 2,
};

/// What a block of one rank tells the same block of another one when they meet. `epoch` is stored
/// last.
struct alignas(64) Record {
  uint64_t signature;  // what all ranks have to call alike
  uint64_t input;      // where the owner has what the other one reads
  uint64_t output;     // where the owner wants results, when others write them
  uint64_t bytes;      // that the owner brings for the other one
  uint64_t most;       // bytes that it brings for any rank
  uint32_t call;       // its number on the owner
  uint16_t input_region, output_region;
  uint32_t flags;
  uint32_t unused[2];
  uint32_t epoch;  // how often the block has met others
};

enum RecordFlags : uint32_t {
  kReachable = 1,  // every other rank can reach its buffers
  kStaged = 2,     // all that it brings lies in its staging memory already
};

/// Why nothing more is done.
enum Failure : uint32_t {
  kNone = 0,
  kDisagreed = 1,  // ranks have called different things
  kTimedOut = 2,   // a rank has waited too long for others
  kLost = 3,       // a rank's host knows that others will not come
  // Of groups that are a part of a larger one, with groups on other hosts.
  kHostsDisagreed = 4,      // ranks of other hosts have called something else
  kGaveUpAcross = 5,        // `by` has waited too long for ranks of other hosts
  kDisagreedElsewhere = 6,  // ranks of another host disagree among themselves
  kFailedElsewhere = 7,     // another host's group has failed in another way
};

/// What a rank leaves in the memory of all when it fails; `failure` is stored last.
struct alignas(64) Poison {
  uint32_t calls[kMostRanks];  // by rank: the number of what it has called
  uint32_t by;                 // the rank that failed first
  uint32_t missing;            // a bit for each rank that it has waited for in vain; or a host
  uint32_t failure;
};

/// The beginning of each rank's memory for all: staging memory and records follow.
struct alignas(64) Arena {
  Poison poison;
  uint32_t epochs[kMostBlocks];  // of the rank's own blocks
  uint32_t begun;                // as in Report, of the call under way
  uint32_t finished;             // its blocks that have come to their end
};

/// Where the records of a turn lie in the arena of a group of `size` ranks, whose kernels have at
/// most `blocks` blocks: what block `block` of its owner heard from rank `from`.
constexpr uint64_t RecordOffset(
    int size, uint32_t blocks, uint32_t turn, uint32_t block, int from) {
  const uint64_t index =
      (static_cast<uint64_t>(turn) * blocks + block) * static_cast<uint64_t>(size) +
      static_cast<uint64_t>(from);
  return sizeof(Arena) + index * sizeof(Record);
}
/// Where the staging memory of block `block` lies.
constexpr uint64_t StageOffset(int size, uint32_t blocks, uint32_t turn, uint32_t block) {
  return RecordOffset(size, blocks, 2, 0, 0) +
         (static_cast<uint64_t>(turn) * blocks + block) * kStageBytes;
}
constexpr uint64_t ArenaBytes(int size, uint32_t blocks) { return StageOffset(size, blocks, 2, 0); }

// Messages from one rank to another are broadcasts in a group of these two, the sender being its
// rank 0. Each pair has one for either direction, whose arenas lie behind those of collectives.
enum Direction : int { kOut, kIn };
constexpr uint64_t ChannelOffset(int size, int peer, Direction direction) {
  return ArenaBytes(size, kMostBlocks) +
         static_cast<uint64_t>(2 * peer + direction) * ArenaBytes(2, kMessageBlocks);
}
constexpr uint64_t MemoryBytes(int size) { return ChannelOffset(size, size, kOut); }

/// In pinned memory of a rank's host, which looks at it from time to time.
struct alignas(64) Report {
  uint32_t abort;         // by the host, a Failure: leave
  uint32_t begun, ended;  // of the call under way: how often block 0 had met others
  Poison poison;          // why a kernel has left
};

/// The ranks of a group as one of them sees them.
struct Group {
  int32_t rank, size;
  uint32_t most_blocks;
  char* arenas[kMostRanks];            // mapped here, by rank
  const int64_t* offsets[kMostRanks];  // by rank, [kMostRegions]
  Report* report;
};

/// Part of a buffer, in bytes.
struct Piece {
  uint64_t begin, bytes;
};

/// The numbers of DTRUN_SUM ... DTRUN_PRODUCT.
enum Op : int32_t { kSum, kAverage, kMin, kMax, kProduct };

/// Where the results of a reduction go.
enum class Target : int32_t { kAll, kRoot, kOwn };

/// A call, as all of its kernels take it. Unused fields are zero.
struct CollectiveArgs {
  Group group;
  uint64_t signature;
  char* input;
  char* output;
  uint32_t call;
  uint16_t input_region, output_region;
  uint32_t flags;
  // Whether every rank has to have checked its peers' counts before any touches its output.
  int32_t checks_counts;
  int32_t root;
  uint64_t most;         // bytes that this rank brings for any other
  uint64_t piece_bytes;  // what of it a block stages at a time

  // Of kinds that move: to and from each rank.
  int32_t same_for_all;  // every rank gets the same piece
  Piece sends[kMostRanks];
  Piece receives[kMostRanks];

  // Of reductions.
  uint64_t bytes;  // of the input
  Piece wanted;    // of the result, by this rank
  Piece share;     // of the result, that this rank computes where all reach all
  Target target;
  int32_t op, divisor;
  int32_t scaled;
  double before, after;
  uint8_t combines[kMostRanks];  // by input: how often to combine the last two when it has come
};

/// What ranks of different hosts tell each other of the call under way.
struct HostState {
  uint64_t signature;
  uint64_t failure;  // a Failure of this rank's group, or kNone
};

/// For the kernels of host_verdict.cu. Unused fields are zero.
struct VerdictArgs {
  Group group;
  HostState* states;  // this rank's; or those of all hosts
  int32_t hosts;
  uint32_t call;
  uint64_t signature;
};

static_assert(sizeof(CollectiveArgs) <= 4096, "what a kernel can be given");

}  // namespace dtrun::ops::cuda

#endif
