#include "launcher/plan/rank_environment.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/text.h"

namespace dtrun::launcher {
namespace {

using base::Text;

constexpr int kFirstPort = 20'000;
constexpr int kLastPort = 32'767;            // Linux takes outgoing ports from 32768 on
constexpr size_t kMaxVariable = 128 * 1024;  // MAX_ARG_STRLEN of the kernel

}  // namespace

base::Environment RankVariables(
    const std::vector<base::HostSlots>& hosts, int rank, const std::string& master_address,
    int master_port, const TfRoles& roles) {
  const int host = base::HostOfRank(hosts, rank);
  int first_of_host = 0;
  for (int i = 0; i < host; ++i) first_of_host += hosts[static_cast<size_t>(i)].slots;
  base::Environment variables = {
      {"RANK", Text(rank)},
      {"WORLD_SIZE", Text(base::RankCount(hosts))},
      {"LOCAL_RANK", Text(rank - first_of_host)},
      {"LOCAL_WORLD_SIZE", Text(hosts[static_cast<size_t>(host)].slots)},
  };
  const std::string config = WriteTfConfig(hosts, roles, master_address, rank, master_port + 1);
  if (config.size() + sizeof "TF_CONFIG=" < kMaxVariable)
    variables.emplace_back("TF_CONFIG", config);
  return variables;
}

const std::vector<std::string>& RankVariableNames() {
  static const std::vector<std::string> names = {"RANK",      "WORLD_SIZE",       "LOCAL_RANK",
                                                 "TF_CONFIG", "LOCAL_WORLD_SIZE", kMasterAddress,
                                                 kMasterPort};
  return names;
}

int ChoosePort(
    unsigned random, int ranks_there, const std::function<bool(int)>& is_free,
    base::PortRange range) {
  constexpr int kTries = 20;
  if (range.first == 0) range = {kFirstPort, kLastPort};
  const int count = range.last - range.first + 1;
  const int needed = std::min({ranks_there + 1, 1001, count});
  const int choices = count / needed;
  int port = range.first;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    port = range.first +
           static_cast<int>(
               (random + static_cast<unsigned>(attempt)) % static_cast<unsigned>(choices)) *
               needed;
    bool free = true;
    for (int i = 0; free && i < needed; ++i) free = is_free(port + i);
    if (free) break;
  }
  return port;
}

bool IsFreePort(int port) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0) return true;  // not known
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const bool free =
      bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(listener);
  return free;
}

}  // namespace dtrun::launcher
