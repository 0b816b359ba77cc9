#ifndef DTRUN_OPS_CUDA_KERNEL_ARGS_H_
#define DTRUN_OPS_CUDA_KERNEL_ARGS_H_

#include <cstdint>

// The arguments of the kernels of collectives.cu, and the data that kernels of different ranks
// exchange. Plain data, for the host and for kernels.

namespace dtrun::ops::cuda {

constexpr int kMostInputs = 1024;  // of a reduction
constexpr int kMostRanks = 32;     // of a meeting

/// Reduces `inputs` arrays into one: element i of `output` comes from element i of every array. The
/// arithmetic is that of ops/reduce/reduce.h.
struct ReduceArgs {
  // The arrays begin at `arrays`, `stride` bytes apart. If `arrays` is null, they begin `offset`
  // bytes after the addresses in `at`.
  const char* arrays;
  uint64_t stride, offset;
  const char* at[kMostRanks];
  char* output;
  uint64_t count;
  double before, after;
  int32_t inputs, divisor;
  int32_t op;  // of dtrun/types.h
  int32_t scaled;
  uint32_t* failure;              // null, or a word that is not 0 if the kernel must do nothing
  uint8_t combines[kMostInputs];  // by input: combinations of the last two values after it
};
static_assert(sizeof(ReduceArgs) <= 4096, "a kernel takes at most 4096 bytes");

/// Adds to `combines` the combinations for the tree over inputs [first, first + count). The right
/// half is the smaller one.
inline void CountCombines(int first, int count, uint8_t* combines) {
  if (count == 1) return;
  const int left = count - count / 2;
  CountCombines(first, left, combines);
  CountCombines(first + left, count - left, combines);
  ++combines[first + count - 1];
}

/// The reason why a group has ended.
enum Failure : uint32_t {
  kNone = 0,
  kDisagreed = 1,  // ranks have made different calls
  kTimedOut = 2,   // a rank has waited too long for others
  kLost = 3,       // a rank's host knows that others will not come
};

/// What one rank tells another rank at a meeting. `number` is stored last.
struct alignas(32) Told {
  uint64_t state;   // the same on all ranks if their calls agree
  uint64_t bytes;   // that the rank sends to the other rank, if only these two know it
  uint32_t call;    // the rank's number of the call
  uint32_t number;  // of the meetings at which the rank has told the other rank something
};

/// Why a group has ended. `failure` is stored last.
struct Poison {
  uint32_t calls[kMostRanks];  // by rank: the number of its call
  uint32_t by;                 // the rank that failed first
  uint32_t missing;            // a bit for each rank that did not come
  uint32_t failure;
};

/// The meetings of one rank, in GPU memory that all ranks of the host map.
constexpr uint32_t kToldKept = 4;
struct alignas(64) Meetings {
  Told told_by[kToldKept][kMostRanks];  // by number % kToldKept, and by rank
  Poison poison;
  // Of this rank alone: the numbers of what it has told each rank, and heard from each rank.
  uint32_t told[kMostRanks], heard[kMostRanks];
  uint32_t held;  // meetings
};

/// The words between a rank's kernels and its host, in pinned host memory. The host polls them.
struct alignas(64) MeetReport {
  uint32_t abort;         // a Failure, set by the host: kernels leave
  uint32_t begun, ended;  // the number of this rank's last meeting that has begun, ended
  Poison poison;
};

struct MeetArgs {
  int32_t rank, size;
  uint32_t tells, hears;  // a bit for each other rank that is told something, or heard
  uint32_t call;
  uint64_t state;
  uint64_t sends[kMostRanks], receives[kMostRanks];  // bytes, for Told::bytes
  Meetings* meetings[kMostRanks];                    // by rank, as mapped on this rank
  MeetReport* report;
};

/// Copies pieces that do not overlap, unless *failure is not 0.
struct CopyArgs {
  struct Piece {
    char* to;
    const char* from;
    uint64_t bytes;
  };
  uint32_t* failure;
  uint64_t count;  // of pieces
  Piece pieces[kMostRanks];
};

}  // namespace dtrun::ops::cuda

#endif  // DTRUN_OPS_CUDA_KERNEL_ARGS_H_
