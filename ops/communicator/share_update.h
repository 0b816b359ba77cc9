#ifndef DTRUN_OPS_COMMUNICATOR_SHARE_UPDATE_H_
#define DTRUN_OPS_COMMUNICATOR_SHARE_UPDATE_H_

#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>

#include "dtrun/types.h"
#include "ops/collective/collective.h"
#include "ops/reduce/reduce.h"

namespace dtrun::ops {

/// Elements of a rank's share that are not reduced yet: what a fused update works on. All pointers
/// are to the first of the elements.
struct UnreducedShare {
  const void* const* inputs;  ///< of all ranks, in their order
  int input_count;
  Arithmetic arithmetic;  ///< with the stores that suit the copies
  void* const* copies;    ///< the elements in the other ranks' outputs, which become equal to ours
  int copy_count;
};

/// What a rank does with its share.
struct ShareUpdate {
  /// With elements [first, first + count) of the whole buffer, of which `reduced` holds the
  /// reduction, in memory that is free again when it returns. Pieces come in ascending order. It
  /// does not throw, and calls nothing of the communicator.
  using Piece = std::function<void(uint64_t first, uint64_t count, const void* reduced)>;
  /// The same for all of the share at once, where this rank reaches all inputs and outputs: it
  /// reduces as it goes, and stores the copies as well, with streaming stores unfenced.
  using Fused = std::function<void(uint64_t first, uint64_t count, const UnreducedShare& share)>;

  ShareUpdate(Piece of_piece, Fused of_share)
      : piece(std::move(of_piece)), fused(std::move(of_share)) {}
  /// Without a fused one.
  template <typename Callable>
  requires std::is_invocable_v<Callable&, uint64_t, uint64_t, const void*> ShareUpdate(
      Callable of_piece)  // NOLINT: a function of pieces is an update
      : piece(std::move(of_piece)) {}

  Piece piece;
  Fused fused;  ///< may be empty
};

/// A share is updated in pieces of this size: the data that belongs to a piece, state included,
/// stays in the second-level cache (1 MiB and more) from its reduction to its last store. Smaller
/// pieces are slower: at each of them every stream of memory starts anew.
inline constexpr uint64_t kPieceBytes = 64 << 10;

/// Calls `update` for the pieces of `share` of `reduced`, multiplied by `factor` if that is not 1.
void UpdateInPieces(Buffer reduced, Range share, double factor, const ShareUpdate::Piece& update);

/// What rank `rank` owns where the shares of all ranks lie in rank order.
Range ShareOf(const Counts& shares, int rank);

}  // namespace dtrun::ops

#endif
