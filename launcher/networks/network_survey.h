#ifndef DTRUN_LAUNCHER_NETWORKS_NETWORK_SURVEY_H_
#define DTRUN_LAUNCHER_NETWORKS_NETWORK_SURVEY_H_

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "launcher/networks/network_choice.h"

namespace dtrun::launcher {

/// What dtrun learns of the hosts' networks from their agents, in two steps: each says which
/// interfaces it has and how ssh has come to it; then each is told the addresses of the others and
/// says from which of its own the kernel would send to them. Jobs on this machine alone need none
/// of it.
class NetworkSurvey {
 public:
  /// The hosts of the job, and which are this machine.
  NetworkSurvey(const std::vector<std::string>& hosts, const std::vector<bool>& on_this_machine);

  /// The agent's part: what it says at first, and the answer to PeersOf.
  static nlohmann::json OwnFacts();
  static nlohmann::json OwnRoutes(const nlohmann::json& peers);

  /// The first answer of a host has come; true when it was the last one, and the hosts are to be
  /// asked for routes; then it may wait 2 s for a name service. A second answer of a host counts
  /// for nothing. Throws nlohmann::json::exception or LaunchError kInternal, like HearRoutes, for
  /// what is no answer.
  bool HearFacts(size_t host, const nlohmann::json& facts);
  /// The addresses of all hosts as `host` is to reach them; "" for itself and where nobody knows.
  nlohmann::json PeersOf(size_t host) const;
  void HearRoutes(size_t host, const nlohmann::json& routes);

  bool HasRoutes(size_t host) const { return complete() || !hosts_[host].sources.empty(); }
  bool complete() const { return missing_routes_ == 0; }
  const std::vector<HostNetworks>& hosts() const { return hosts_; }

 private:
  struct Contact {
    bool here;
    bool has_said = false, has_routed = false;  // once each: no agent answers for another
    std::string server = {};  // its address, as ssh there says, or a name service here
    std::string client = {};  // this machine's address, as ssh there says
  };

  void AskNameService();

  std::vector<HostNetworks> hosts_;
  std::vector<Contact> contacts_;
  size_t missing_facts_ = 0, missing_routes_ = 0;
};

/// An IPv4 address of this name, "" when there is none; waits for a name service.
std::string AddressOfName(const std::string& name);

/// The same for many names at once; "" too for what takes longer than `patience`.
std::vector<std::string> AddressesOfNames(
    const std::vector<std::string>& names, std::chrono::milliseconds patience);

/// This machine's address from which packets to `address` leave; "" when there is no way.
std::string SourceAddressTo(const std::string& address);

/// What this machine alone can say of the networks of a job on `hosts`, without asking them: its
/// own, the first entry, and of the others the address that a name service gives within 2 s.
std::vector<HostNetworks> SurveyFromHere(
    const std::vector<std::string>& hosts, const std::vector<bool>& on_this_machine);

}  // namespace dtrun::launcher

#endif
