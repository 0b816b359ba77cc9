#include "base/call.h"

#include "base/text.h"
#include "dtrun/types.h"

namespace dtrun::base {

const char* NameOf(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce: return "all_reduce";
    case CollectiveKind::kReduceScatter: return "reduce_scatter";
    case CollectiveKind::kReduce: return "reduce";
    case CollectiveKind::kBroadcast: return "broadcast";
    case CollectiveKind::kAllGather: return "all_gather";
    case CollectiveKind::kAllToAll: return "all_to_all";
    case CollectiveKind::kGather: return "gather";
    case CollectiveKind::kScatter: return "scatter";
    case CollectiveKind::kBarrier: return "barrier";
    case CollectiveKind::kSend: return "send";
    case CollectiveKind::kReceive: return "receive";
    case CollectiveKind::kReduceUpdate: return "reduce_update";
    case CollectiveKind::kReduceUpdateGather: return "reduce_update_gather";
  }
  return "unknown collective";
}

bool Combines(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kReduce || UpdatesShares(kind);
}

bool UpdatesShares(CollectiveKind kind) {
  return kind == CollectiveKind::kReduceUpdate || kind == CollectiveKind::kReduceUpdateGather;
}

bool HasRoot(CollectiveKind kind) {
  return kind == CollectiveKind::kReduce || kind == CollectiveKind::kBroadcast ||
         kind == CollectiveKind::kGather || kind == CollectiveKind::kScatter;
}

bool IsMessage(CollectiveKind kind) {
  return kind == CollectiveKind::kSend || kind == CollectiveKind::kReceive;
}

std::string Describe(const Call& call) {
  const auto kind = static_cast<CollectiveKind>(call.kind);
  std::string text = NameOf(kind);
  if (kind == CollectiveKind::kBarrier) return text;
  text += Text(" (", NameOf(static_cast<DType>(call.dtype)), ", ", call.count, " elements");
  if (Combines(kind)) text += Text(", ", NameOf(static_cast<ReduceOp>(call.op)));
  if (call.before != 1) text += Text(", scaled by ", call.before, " before");
  if (call.after != 1) text += Text(", scaled by ", call.after, " after");
  if (HasRoot(kind)) text += Text(", root ", call.root);
  if (kind == CollectiveKind::kSend) text += Text(", to rank ", call.root);
  if (kind == CollectiveKind::kReceive) text += Text(", from rank ", call.root);
  return text + ")";
}

std::string NameOperation(const Call& call, uint64_t sequence, const std::string& communicator) {
  const bool message = IsMessage(static_cast<CollectiveKind>(call.kind));
  return Text(
      message ? "message #" : "collective #", sequence,
      communicator == "world" ? "" : " of " + communicator, ", ", Describe(call));
}

}  // namespace dtrun::base
