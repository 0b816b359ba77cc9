#ifndef DTRUN_OPS_SHARE_UPDATE_H_
#define DTRUN_OPS_SHARE_UPDATE_H_

#include <cstdint>
#include <functional>

#include "dtrun/types.h"
#include "ops/collective.h"

namespace dtrun::ops {

/// What a rank does with a piece of its share: elements [first, first + count) of the whole buffer,
/// of which `reduced` holds the reduction, in memory that is free again when it returns. Pieces
/// come in ascending order. It does not throw, and calls nothing of the communicator.
using ShareUpdate = std::function<void(uint64_t first, uint64_t count, const void* reduced)>;

/// A share is updated in pieces of this size: the data that belongs to a piece, state included,
/// stays in the second-level cache (1 MiB and more) from its reduction to its last store. Smaller
/// pieces are slower: at each of them every stream of memory starts anew.
inline constexpr uint64_t kPieceBytes = 64 << 10;

/// Calls `update` for the pieces of `share` of `reduced`, multiplied by `factor` if that is not 1.
void UpdateInPieces(Buffer reduced, Range share, double factor, const ShareUpdate& update);

/// What rank `rank` owns where the shares of all ranks lie in rank order.
Range ShareOf(const Counts& shares, int rank);

}  // namespace dtrun::ops

#endif
