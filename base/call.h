#ifndef DTRUN_BASE_CALL_H_
#define DTRUN_BASE_CALL_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>

#include "base/text.h"
#include "dtrun/types.h"

namespace dtrun::base {

/// An operation of all ranks of a communicator, or of two ranks (send and receive).
enum class CollectiveKind : uint8_t {
  kAllReduce,
  kReduceScatter,
  kReduce,
  kBroadcast,
  kAllGather,
  kAllToAll,
  kGather,
  kScatter,
  kBarrier,
  kSend,
  kReceive,
  kReduceUpdate,
  kReduceUpdateGather,
  kShutdown,
};

/// The properties of a kind. Checks, plans, comparisons, names and records are derived from the
/// table of these rows below. Only the algorithms of the backends are written for each kind.
struct CollectiveTraits {
  enum class Does : uint8_t {
    kCombine,        ///< computes on the inputs
    kCombineUpdate,  ///< also hands each rank its share of the result before other ranks see it
    kMove,           ///< copies from inputs to outputs
    kMeet,           ///< has no data
    kSendOrReceive,  ///< is one side of a message
  };
  /// Ranks that have an input or an output: one bit for the root, one for the other ranks.
  enum class Ranks : uint8_t { kNone = 0, kRoot = 1, kAllButRoot = 2, kAll = kRoot | kAllButRoot };
  /// The content of an input or an output.
  enum class Layout : uint8_t {
    kWhole,   ///< the same number of elements on every rank that has one
    kByRank,  ///< the parts of all ranks, one after the other; counts may give their lengths
    kPart,    ///< this rank's part of the other side, which is kByRank
  };

  CollectiveKind kind;
  const char* name;
  Does does;
  Ranks inputs, outputs;
  Layout input = Layout::kWhole, output = Layout::kWhole;
};

namespace internal {

using Does = CollectiveTraits::Does;
using Ranks = CollectiveTraits::Ranks;
using Layout = CollectiveTraits::Layout;
using Kind = CollectiveKind;

// In the order of CollectiveKind.
// clang-format off
inline constexpr CollectiveTraits kTraits[] = {
  {Kind::kAllReduce, "all_reduce", Does::kCombine, Ranks::kAll, Ranks::kAll},
  {Kind::kReduceScatter, "reduce_scatter", Does::kCombine, Ranks::kAll, Ranks::kAll, Layout::kByRank, Layout::kPart},
  {Kind::kReduce, "reduce", Does::kCombine, Ranks::kAll, Ranks::kRoot},
  {Kind::kBroadcast, "broadcast", Does::kMove, Ranks::kRoot, Ranks::kAllButRoot},
  {Kind::kAllGather, "all_gather", Does::kMove, Ranks::kAll, Ranks::kAll, Layout::kPart, Layout::kByRank},
  {Kind::kAllToAll, "all_to_all", Does::kMove, Ranks::kAll, Ranks::kAll, Layout::kByRank, Layout::kByRank},
  {Kind::kGather, "gather", Does::kMove, Ranks::kAll, Ranks::kRoot, Layout::kPart, Layout::kByRank},
  {Kind::kScatter, "scatter", Does::kMove, Ranks::kRoot, Ranks::kAll, Layout::kByRank, Layout::kPart},
  {Kind::kBarrier, "barrier", Does::kMeet, Ranks::kNone, Ranks::kNone},
  {Kind::kSend, "send", Does::kSendOrReceive, Ranks::kAll, Ranks::kNone},
  {Kind::kReceive, "receive", Does::kSendOrReceive, Ranks::kNone, Ranks::kAll},
  {Kind::kReduceUpdate, "reduce_update", Does::kCombineUpdate, Ranks::kAll, Ranks::kNone, Layout::kByRank},
  {Kind::kReduceUpdateGather, "reduce_update_gather", Does::kCombineUpdate, Ranks::kAll, Ranks::kAll, Layout::kByRank},
  {Kind::kShutdown, "shutdown", Does::kMeet, Ranks::kNone, Ranks::kNone},
};
// clang-format on

inline constexpr CollectiveTraits kUnknown = {
    Kind::kBarrier, "unknown collective", Does::kMove, Ranks::kNone, Ranks::kNone};

constexpr bool IsInOrder() {
  for (size_t i = 0; i < std::size(kTraits); ++i)
    if (static_cast<size_t>(kTraits[i].kind) != i) return false;
  return true;
}
static_assert(IsInOrder());

}  // namespace internal

/// The row of `kind`. A number that is no kind has a row without data, named "unknown collective".
constexpr const CollectiveTraits& TraitsOf(CollectiveKind kind) {
  const auto i = static_cast<size_t>(kind);
  return i < std::size(internal::kTraits) ? internal::kTraits[i] : internal::kUnknown;
}

/// Whether the root is one of `ranks`, or whether the other ranks are.
constexpr bool Contains(CollectiveTraits::Ranks ranks, bool root) {
  using Ranks = CollectiveTraits::Ranks;
  const Ranks wanted = root ? Ranks::kRoot : Ranks::kAllButRoot;
  return (static_cast<unsigned>(ranks) & static_cast<unsigned>(wanted)) != 0;
}

/// "all_reduce" and so on.
inline const char* NameOf(CollectiveKind kind) { return TraitsOf(kind).name; }

/// Whether the kind is reduce_update or reduce_update_gather.
constexpr bool UpdatesShares(CollectiveKind kind) {
  return TraitsOf(kind).does == CollectiveTraits::Does::kCombineUpdate;
}
/// Whether the kind computes: all_reduce, reduce_scatter, reduce and both updates of shares.
constexpr bool Combines(CollectiveKind kind) {
  return TraitsOf(kind).does == CollectiveTraits::Does::kCombine || UpdatesShares(kind);
}
/// Whether one rank has a special part: reduce, broadcast, gather and scatter.
constexpr bool HasRoot(CollectiveKind kind) {
  const auto depends = [](CollectiveTraits::Ranks ranks) {
    return ranks == CollectiveTraits::Ranks::kRoot || ranks == CollectiveTraits::Ranks::kAllButRoot;
  };
  return depends(TraitsOf(kind).inputs) || depends(TraitsOf(kind).outputs);
}
/// Whether the kind has no data: barrier and shutdown.
constexpr bool OnlyMeets(CollectiveKind kind) {
  return TraitsOf(kind).does == CollectiveTraits::Does::kMeet;
}
/// Whether the kind is send or receive.
constexpr bool IsMessage(CollectiveKind kind) {
  return TraitsOf(kind).does == CollectiveTraits::Does::kSendOrReceive;
}

/// The call of a rank, in a form that its peers can compare before data moves. The rank's flight
/// record also holds it. Plain bytes: all ranks run the same build.
struct Call {
  uint64_t count;  ///< n of the table in ops/collective/collective.h; of all_to_all,
                   ///< reduce_scatter: the whole input
  double before, after;
  int32_t root, divisor;
  uint8_t kind, dtype, op;
  uint8_t tables;  ///< kSends, kReceives: the tables of counts by rank that come with this

  enum : uint8_t { kSends = 1, kReceives = 2 };
};

/// "all_reduce (f32, 4 elements, sum)". `call` may hold any bytes.
inline std::string Describe(const Call& call) {
  const auto kind = static_cast<CollectiveKind>(call.kind);
  std::string text = NameOf(kind);
  if (OnlyMeets(kind)) return text;
  text += Text(" (", NameOf(static_cast<DType>(call.dtype)), ", ", call.count, " elements");
  if (Combines(kind)) text += Text(", ", NameOf(static_cast<ReduceOp>(call.op)));
  if (call.before != 1) text += Text(", scaled by ", call.before, " before");
  if (call.after != 1) text += Text(", scaled by ", call.after, " after");
  if (HasRoot(kind)) text += Text(", root ", call.root);
  if (kind == CollectiveKind::kSend) text += Text(", to rank ", call.root);
  if (kind == CollectiveKind::kReceive) text += Text(", from rank ", call.root);
  return text + ")";
}

/// "collective #12, all_reduce (f32, 4 elements, sum)"; "message #3 of world/1, send (f32, 4
/// elements, to rank 1)".
inline std::string NameOperation(
    const Call& call, uint64_t sequence, const std::string& communicator) {
  const bool message = IsMessage(static_cast<CollectiveKind>(call.kind));
  return Text(
      message ? "message #" : "collective #", sequence,
      communicator == "world" ? "" : " of " + communicator, ", ", Describe(call));
}

}  // namespace dtrun::base

#endif
