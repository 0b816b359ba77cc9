#ifndef DTRUN_OPS_CUDA_PLAN_H_
#define DTRUN_OPS_CUDA_PLAN_H_

#include <cstdint>

#include "ops/collective.h"
#include "ops/cuda/protocol.h"

namespace dtrun::ops::cuda {

/// What a rank tells its kernel of a call.
struct Plan {
  /// All but the group, the addresses, the regions and kReachable.
  CollectiveArgs args = {};
  /// The same on all ranks, when their calls agree.
  uint32_t blocks = 1;
  uint32_t threads = kLeastThreads;
  /// Whether others read this rank's input, and write its output.
  bool input_is_read = false, output_is_written = false;
};

/// Data up to this size is staged, in bytes that a rank brings for another one, times the other
/// ranks.
constexpr uint64_t kMostStagedBytes = 512 << 10;

/// `collective` has been checked, and is no message. At most `most_blocks` blocks.
Plan MakePlan(const Collective& collective, int rank, int size, uint32_t most_blocks);

/// A digest of what all ranks have to call alike, of any number of ranks.
uint64_t SignatureOf(const Collective& collective, int rank, int size);

}  // namespace dtrun::ops::cuda

#endif
