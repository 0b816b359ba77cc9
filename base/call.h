#ifndef DTRUN_BASE_CALL_H_
#define DTRUN_BASE_CALL_H_

#include <cstdint>
#include <string>

namespace dtrun::base {

/// What ranks do together; send and receive, what two of them do.
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
};

/// "all_reduce" and so on.
const char* NameOf(CollectiveKind kind);

/// all_reduce, reduce_scatter, reduce and both updates of shares: they compute.
bool Combines(CollectiveKind kind);
/// reduce_update and reduce_update_gather.
bool UpdatesShares(CollectiveKind kind);
/// One rank has a part of its own: reduce, broadcast, gather and scatter.
bool HasRoot(CollectiveKind kind);
/// send and receive.
bool IsMessage(CollectiveKind kind);

/// What a rank called, in a form that its peers can compare before data moves, and that lies in its
/// flight record. Plain bytes: all ranks run the same build.
struct Call {
  uint64_t count;  ///< n of the table in ops/collective/collective.h; of all_to_all,
                   ///< reduce_scatter: the whole input
  double before, after;
  int32_t root, divisor;
  uint8_t kind, dtype, op;
  uint8_t tables;  ///< kSends, kReceives: the counts by rank that come beside this

  enum : uint8_t { kSends = 1, kReceives = 2 };
};

/// "all_reduce (f32, 4 elements, sum)". Any bytes may stand in `call`.
std::string Describe(const Call& call);

/// "collective #12, all_reduce (f32, 4 elements, sum)"; "message #3 of world/1, send (f32, 4
/// elements, to rank 1)".
std::string NameOperation(const Call& call, uint64_t sequence, const std::string& communicator);

}  // namespace dtrun::base

#endif
