#ifndef DTRUN_LAUNCHER_NETWORKS_NETWORK_INTERFACES_H_
#define DTRUN_LAUNCHER_NETWORKS_NETWORK_INTERFACES_H_

#include <sys/types.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace dtrun::launcher {

/// What the kernel says an interface is. A bond, and a VLAN of a device, count as devices.
enum class InterfaceKind {
  kDevice,    ///< hardware stands behind it
  kLoopback,  ///< leads nowhere else
  kBridge,    ///< joins what is on this machine, such as docker0
  kVirtual,   ///< made by software: one end of a pair, a tunnel
};

/// A network interface that is up, with one of its IPv4 addresses; "" where it has none.
struct Interface {
  std::string name;
  std::string address = {};
  int prefix = 0;      ///< bits of the network in the address
  int speed_mbit = 0;  ///< 0: the driver does not say
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

/// Of interface `name`, as `folder` (/sys/class/net) describes it.
InterfaceKind KindOf(const std::string& folder, const std::string& name);

/// Those of this machine that are up, one entry for each IPv4 address.
std::vector<Interface> OwnInterfaces();

/// The IPv4 addresses to which `process`, one of this user's, has TCP connections.
std::set<std::string> AddressesConnectedTo(pid_t process);

/// A number for an IPv4 address, whose bits compare; nothing for any other text.
std::optional<uint32_t> Ipv4(const std::string& address);
std::string Ipv4Text(uint32_t address);

/// A network of addresses that begin with the same bits.
struct Ipv4Network {
  uint32_t first;
  int bits;  ///< 0 to 32

  /// That of `address`.
  static Ipv4Network Of(uint32_t address, int bits);

  bool Has(uint32_t address) const;
  std::string text() const;  ///< "10.1.0.0/16"
};

/// Whether IPv4 `address` lies in `network`, "10.1.0.0/16".
bool IsInNetwork(const std::string& address, const std::string& network);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_NETWORKS_NETWORK_INTERFACES_H_
