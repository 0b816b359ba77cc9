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

/// Elements of a rank's share that are not reduced yet: the argument of a fused update. All
/// pointers point to the first element of the share.
struct UnreducedShare {
  const void* const* inputs;  ///< of all ranks, in rank order
  int input_count;
  Arithmetic arithmetic;  ///< its stores suit the copies
  void* const* copies;    ///< these elements in the other ranks' outputs; become equal to ours
  int copy_count;
};

/// The functions that update a rank's share.
struct ShareUpdate {
  /// Updates elements [first, first + count) of the whole buffer. `reduced` holds their reduction;
  /// its memory is reused after the call. The pieces come in ascending order. A Piece does not
  /// throw and does not call the communicator.
  using Piece = std::function<void(uint64_t first, uint64_t count, const void* reduced)>;
  /// Updates the whole share in one call, if this rank reaches all inputs and outputs. It reduces
  /// the inputs and also stores the copies. Its streaming stores are not fenced.
  using Fused = std::function<void(uint64_t first, uint64_t count, const UnreducedShare& share)>;

  ShareUpdate(Piece of_piece, Fused of_share)
      : piece(std::move(of_piece)), fused(std::move(of_share)) {}
  /// An update without a fused function.
  template <typename Callable>
  requires std::is_invocable_v<Callable&, uint64_t, uint64_t, const void*> ShareUpdate(
      Callable of_piece)  // NOLINT: a function of pieces is an update
      : piece(std::move(of_piece)) {}

  Piece piece;
  Fused fused;  ///< may be empty
};

/// The size of the pieces in which a share is updated. All data of a piece, including the state,
/// stays in the second-level cache (1 MiB and more) from its reduction to its last store. Smaller
/// pieces are slower, because every memory stream restarts at each piece.
inline constexpr uint64_t kPieceBytes = 64 << 10;

/// Calls `update` for the pieces of `share` in `reduced`. The values are multiplied by `factor`.
void UpdateInPieces(Buffer reduced, Range share, double factor, const ShareUpdate::Piece& update);

/// The share of rank `rank`, if the shares of all ranks lie in rank order.
Range ShareOf(const Counts& shares, int rank);

}  // namespace dtrun::ops

#endif
