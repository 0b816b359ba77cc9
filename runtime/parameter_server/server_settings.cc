#include "runtime/parameter_server/server_settings.h"

#include <thread>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::runtime {

std::string ServerJob::Name(int of_rank) const {
  const std::string& host =
      host_names[static_cast<size_t>(host_of_rank[static_cast<size_t>(of_rank)])];
  return base::Text("rank ", of_rank, " on ", host);
}

void ThrowPeerLost(const std::string& text) {
  constexpr std::chrono::milliseconds kCulpritFirst{300};
  std::this_thread::sleep_for(kCulpritFirst);
  throw Error(
      ErrorCode::kPeerLost,
      text + "; start the job again: it goes on from its newest checkpoint, if it saves any");
}

void ThrowServerLost(const ServerJob& job, int server) {
  ThrowPeerLost(base::Text(
      "parameter server ", server, " (", job.Name(server),
      ") is lost, and the variables that it held with it"));
}

}  // namespace dtrun::runtime
