#ifndef DTRUN_LAUNCHER_NETWORKS_NETWORK_SURVEY_H_
#define DTRUN_LAUNCHER_NETWORKS_NETWORK_SURVEY_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace dtrun::launcher {

// ---- Interfaces ---------------------------------------------------------------------------------

/// The kind of an interface, as the kernel describes it. A bond, and a VLAN of a device, count as
/// devices.
enum class InterfaceKind {
  kDevice,    ///< backed by hardware
  kLoopback,  ///< reaches only this machine
  kBridge,    ///< joins interfaces of this machine, such as docker0
  kVirtual,   ///< made by software, such as a tunnel or one end of a pair
};

/// A network interface that is up, with one of its IPv4 addresses. Without one, `address` is "".
struct Interface {
  std::string name;
  std::string address = {};
  int prefix = 0;      ///< length of the network's prefix in bits
  int speed_mbit = 0;  ///< 0: not known
  InterfaceKind kind = InterfaceKind::kDevice;

  bool operator==(const Interface&) const = default;
};

NLOHMANN_JSON_SERIALIZE_ENUM(
    InterfaceKind, {{InterfaceKind::kDevice, "device"},
                    {InterfaceKind::kLoopback, "loopback"},
                    {InterfaceKind::kBridge, "bridge"},
                    {InterfaceKind::kVirtual, "virtual"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Interface, name, address, prefix, speed_mbit, kind)

/// "docker0 (a bridge, 172.17.0.1/16)"
std::string InterfaceInWords(const Interface& interface);

/// The kind of interface `name`, as described in `folder` (/sys/class/net).
InterfaceKind KindOf(const std::string& folder, const std::string& name);

/// The interfaces of this machine that are up, with one entry for each IPv4 address.
std::vector<Interface> OwnInterfaces();

/// The remote IPv4 addresses of the TCP connections of `process`, which must belong to this user.
std::set<std::string> AddressesConnectedTo(pid_t process);

// ---- Addresses ----------------------------------------------------------------------------------

/// An IPv4 address as a number in host byte order; nullopt for any other text.
std::optional<uint32_t> Ipv4(const std::string& address);
std::string Ipv4Text(uint32_t address);

/// A network: all addresses with the same first `bits` bits.
struct Ipv4Network {
  uint32_t first;
  int bits;  ///< 0 to 32

  /// The network of `address`.
  static Ipv4Network Of(uint32_t address, int bits);

  bool Has(uint32_t address) const;
  std::string text() const;  ///< "10.1.0.0/16"
};

/// Whether the IPv4 `address` lies in `network` ("10.1.0.0/16").
bool IsInNetwork(const std::string& address, const std::string& network);

// ---- The survey of a job ------------------------------------------------------------------------

/// The networks of one host of a job.
struct HostNetworks {
  std::string host;
  std::vector<Interface> interfaces;
  /// For each host of the job, the address from which this host's kernel sends packets to that
  /// host; "": the host itself, or not known.
  std::vector<std::string> sources;
};

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

#endif  // DTRUN_LAUNCHER_NETWORKS_NETWORK_SURVEY_H_
