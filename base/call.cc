#include "base/call.h"

#include "base/text.h"
#include "dtrun/types.h"

namespace dtrun::base {

std::string Describe(const Call& call) {
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

std::string NameOperation(const Call& call, uint64_t sequence, const std::string& communicator) {
  const bool message = IsMessage(static_cast<CollectiveKind>(call.kind));
  return Text(
      message ? "message #" : "collective #", sequence,
      communicator == "world" ? "" : " of " + communicator, ", ", Describe(call));
}

}  // namespace dtrun::base
