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

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_NETWORKS_NETWORK_INTERFACES_H_
