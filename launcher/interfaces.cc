#include "launcher/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <net/if_arp.h>

#include <bit>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/text.h"
#include "launcher/ipv4.h"

namespace dtrun::launcher {
namespace {

using base::Text;

constexpr char kFolder[] = "/sys/class/net";

int NumberIn(const std::filesystem::path& file, int otherwise) {
  std::ifstream stream(file);
  int number = otherwise;
  return stream >> number ? number : otherwise;
}

// A VLAN and the like name what they stand on: "lower_eth0".
std::string LowerOf(const std::filesystem::path& interface) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(interface, error)) {
    const std::string file = entry.path().filename();
    if (file.starts_with("lower_")) return file.substr(6);
  }
  return "";
}

int SpeedOf(const std::string& name) {
  return std::max(0, NumberIn(std::filesystem::path(kFolder) / name / "speed", 0));
}

}  // namespace

std::string InterfaceInWords(const Interface& interface) {
  const char* kind = "";
  switch (interface.kind) {
    case InterfaceKind::kDevice: kind = "a device"; break;
    case InterfaceKind::kLoopback: kind = "loopback"; break;
    case InterfaceKind::kBridge: kind = "a bridge"; break;
    case InterfaceKind::kVirtual: kind = "virtual"; break;
  }
  return Text(
      interface.name, " (", kind, ", ",
      interface.address.empty() ? "no IPv4 address"
                                : Text(interface.address, '/', interface.prefix),
      ')');
}

InterfaceKind KindOf(const std::string& folder, const std::string& name) {
  const std::filesystem::path interface = std::filesystem::path(folder) / name;
  std::error_code ignored;
  if (NumberIn(interface / "type", -1) == ARPHRD_LOOPBACK) return InterfaceKind::kLoopback;
  if (std::filesystem::exists(interface / "bridge", ignored)) return InterfaceKind::kBridge;
  if (std::filesystem::exists(interface / "device", ignored) ||
      std::filesystem::exists(interface / "bonding", ignored))
    return InterfaceKind::kDevice;
  const std::string lower = LowerOf(interface);
  // Nothing stands on itself, but nobody has to believe what a folder says.
  const bool on_device =
      !lower.empty() && lower != name &&
      std::filesystem::exists(std::filesystem::path(folder) / lower / "device", ignored);
  return on_device ? InterfaceKind::kDevice : InterfaceKind::kVirtual;
}

std::vector<Interface> OwnInterfaces() {
  std::vector<Interface> interfaces;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return interfaces;
  std::set<std::string> without_address;
  for (const ifaddrs* own = first; own != nullptr; own = own->ifa_next) {
    if ((own->ifa_flags & IFF_UP) == 0) continue;
    const std::string name = own->ifa_name;
    if (own->ifa_addr == nullptr || own->ifa_addr->sa_family != AF_INET ||
        own->ifa_netmask == nullptr) {
      without_address.insert(name);
      continue;
    }
    const auto* ip = reinterpret_cast<const sockaddr_in*>(own->ifa_addr);
    const auto* mask = reinterpret_cast<const sockaddr_in*>(own->ifa_netmask);
    interfaces.push_back(
        {name, Ipv4Text(ntohl(ip->sin_addr.s_addr)), std::popcount(mask->sin_addr.s_addr),
         SpeedOf(name), KindOf(kFolder, name)});
  }
  freeifaddrs(first);
  for (const Interface& interface : interfaces) without_address.erase(interface.name);
  for (const std::string& name : without_address)
    interfaces.push_back({name, "", 0, SpeedOf(name), KindOf(kFolder, name)});
  return interfaces;
}

}  // namespace dtrun::launcher
