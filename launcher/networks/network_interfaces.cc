#include "launcher/networks/network_interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <net/if_arp.h>

#include <bit>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/text.h"

namespace dtrun::launcher {
namespace {

using base::Text;

constexpr char kFolder[] = "/sys/class/net";

int NumberIn(const std::filesystem::path& file, int otherwise) {
  std::ifstream stream(file);
  int number = otherwise;
  return stream >> number ? number : otherwise;
}

// The interface below a VLAN or a similar interface, from an entry such as "lower_eth0"; "": none.
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
  // An interface cannot be below itself, but the folder may say so.
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

namespace {

uint32_t Mask(int bits) { return bits == 0 ? 0 : ~uint32_t{0} << (32 - bits); }

}  // namespace

// A line of net/tcp: "0: 0100007F:1F90 0200000A:D431 01 ... INODE ...". Addresses are in memory
// byte order. 01 means an established connection.
std::set<std::string> AddressesConnectedTo(pid_t process) {
  const std::filesystem::path folder = Text("/proc/", process);
  std::set<std::string> sockets, addresses;
  std::error_code error;
  std::filesystem::directory_iterator file(folder / "fd", error), none;
  for (; !error && file != none; file.increment(error)) {
    std::error_code closed;
    sockets.insert(std::filesystem::read_symlink(file->path(), closed));
  }
  std::ifstream table(folder / "net/tcp");
  for (std::string line; std::getline(table, line);) {
    constexpr size_t kRemote = 2, kState = 3, kInode = 9;
    std::vector<std::string> fields;
    std::istringstream stream(line);
    for (std::string field; stream >> field;) fields.push_back(field);
    if (fields.size() <= kInode || fields[kState] != "01") continue;
    if (!sockets.contains(Text("socket:[", fields[kInode], "]"))) continue;
    const auto bytes = static_cast<uint32_t>(std::strtoul(fields[kRemote].c_str(), nullptr, 16));
    addresses.insert(Ipv4Text(ntohl(bytes)));
  }
  return addresses;
}

std::optional<uint32_t> Ipv4(const std::string& address) {
  in_addr bits;
  if (inet_pton(AF_INET, address.c_str(), &bits) != 1) return std::nullopt;
  return ntohl(bits.s_addr);
}

std::string Ipv4Text(uint32_t address) {
  const in_addr bits = {htonl(address)};
  char text[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, &bits, text, sizeof text);
  return text;
}

Ipv4Network Ipv4Network::Of(uint32_t address, int bits) { return {address & Mask(bits), bits}; }

bool Ipv4Network::Has(uint32_t address) const { return (address & Mask(bits)) == first; }

std::string Ipv4Network::text() const { return base::Text(Ipv4Text(first), '/', bits); }

bool IsInNetwork(const std::string& address, const std::string& network) {
  const size_t slash = network.find('/');
  if (slash == std::string::npos) return false;
  const auto first = Ipv4(network.substr(0, slash)), own = Ipv4(address);
  const int64_t bits = base::ParseInteger(network.substr(slash + 1)).value_or(-1);
  if (!first || !own || bits < 0 || bits > 32) return false;
  return Ipv4Network::Of(*first, static_cast<int>(bits)).Has(*own);
}

}  // namespace dtrun::launcher
