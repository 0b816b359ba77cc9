#ifndef DTRUN_LAUNCHER_NETWORKS_NETWORK_SURVEY_H_
#define DTRUN_LAUNCHER_NETWORKS_NETWORK_SURVEY_H_

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "launcher/networks/network_choice.h"

namespace dtrun::launcher {

/// Collects the networks of all hosts from their agents, in two steps. First, each agent reports
/// its interfaces and the addresses of its ssh connection. Then each agent gets the addresses of
/// the other hosts. It reports the address from which its kernel would send to each of them. A job
/// on this machine alone needs no survey.
class NetworkSurvey {
 public:
  /// The hosts of the job. `on_this_machine` tells which of them are this machine.
  NetworkSurvey(const std::vector<std::string>& hosts, const std::vector<bool>& on_this_machine);

  /// The agent's two reports: its facts, and its routes to the addresses from PeersOf.
  static nlohmann::json OwnFacts();
  static nlohmann::json OwnRoutes(const nlohmann::json& peers);
  /// The address in an agent's facts at which ssh has reached its host; "": not known. Throws
  /// nlohmann::json::exception for malformed facts.
  static std::string AddressIn(const nlohmann::json& facts);

  /// Stores the facts of a host. After the last host, waits up to 2 s for a name service and
  /// returns true; the caller then asks all hosts for their routes. A second report of a host is
  /// ignored. Throws nlohmann::json::exception or LaunchError kInternal for a malformed report,
  /// like HearRoutes.
  bool HearFacts(size_t host, const nlohmann::json& facts);
  /// The addresses at which `host` can reach each host; "": the host itself, or not known.
  nlohmann::json PeersOf(size_t host) const;
  /// Stores the routes of a host.
  void HearRoutes(size_t host, const nlohmann::json& routes);

  bool HasRoutes(size_t host) const { return complete() || !hosts_[host].sources.empty(); }
  bool complete() const { return missing_routes_ == 0; }
  const std::vector<HostNetworks>& hosts() const { return hosts_; }

 private:
  struct Contact {
    bool here;
    bool has_said = false, has_routed = false;  // later reports of the host are ignored
    std::string server = {};  // the host's address, from ssh there or a name service here
    std::string client = {};  // this machine's address, from ssh there
  };

  void AskNameService();

  std::vector<HostNetworks> hosts_;
  std::vector<Contact> contacts_;
  size_t missing_facts_ = 0, missing_routes_ = 0;
};

/// An IPv4 address of this name; "": none. Waits for a name service.
std::string AddressOfName(const std::string& name);

/// The same for many names at once. A name without an answer within `patience` gets "".
std::vector<std::string> AddressesOfNames(
    const std::vector<std::string>& names, std::chrono::milliseconds patience);

/// This machine's address from which packets to `address` leave; "": none.
std::string SourceAddressTo(const std::string& address);

/// The networks of a job on `hosts`, as far as this machine knows them without asking the hosts.
/// The first entry is this machine. The entry of each other host has only the address that a name
/// service gives within 2 s.
std::vector<HostNetworks> SurveyFromHere(
    const std::vector<std::string>& hosts, const std::vector<bool>& on_this_machine);

}  // namespace dtrun::launcher

#endif
