#include "ops/cuda/agree.h"

#include <vector>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::ops::cuda {

std::string FirstObjection(Communicator& host, const std::function<std::string()>& ask) {
  std::string mine;
  try {
    mine = ask();
  } catch (const Error& error) {
    mine = error.what();
  }
  const std::vector<std::string> objections = AllGatherBytes(host, mine);
  for (size_t rank = 0; rank < objections.size(); ++rank) {
    if (objections[rank].empty()) continue;
    return base::Text(host.members().List({static_cast<int>(rank)}), ": ", objections[rank]);
  }
  return "";
}

void AgreeOn(Communicator& host, const std::function<void()>& step) {
  const std::string objection = FirstObjection(host, [&]() -> std::string {
    step();
    return "";
  });
  if (!objection.empty()) throw Error(ErrorCode::kUnavailable, objection);
}

}  // namespace dtrun::ops::cuda
