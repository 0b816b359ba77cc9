#include "launcher/networks.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <optional>
#include <set>

#include "base/text.h"
#include "launcher/launch_error.h"
#include "launcher/quoting.h"

namespace dtrun::launcher {
namespace {

using base::Text;

bool IsNetwork(const std::string& item) {
  const size_t slash = item.find('/');
  in_addr address;
  if (slash == std::string::npos ||
      inet_pton(AF_INET, item.substr(0, slash).c_str(), &address) != 1)
    return false;
  const std::optional<int64_t> bits = base::ParseInteger(item.substr(slash + 1));
  return bits && *bits >= 1 && *bits <= 32;
}

bool IsInterfaceName(const std::string& item) {
  return !item.empty() && item.size() < IFNAMSIZ && item.front() != '-' &&
         std::all_of(item.begin(), item.end(), [](unsigned char c) {
           return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == '@';
         });
}

std::string Network(const sockaddr* address, const sockaddr* mask) {
  const auto* ip = reinterpret_cast<const sockaddr_in*>(address);
  const auto* net = reinterpret_cast<const sockaddr_in*>(mask);
  const in_addr first = {ip->sin_addr.s_addr & net->sin_addr.s_addr};
  char text[INET_ADDRSTRLEN];
  inet_ntop(AF_INET, &first, text, sizeof text);
  return Text(text, '/', std::popcount(net->sin_addr.s_addr));
}

}  // namespace

std::vector<std::string> ParseNetworks(const std::string& text) {
  const std::vector<std::string> items = base::Split(text, ',');
  for (const std::string& item : items)
    if (!IsNetwork(item) && !IsInterfaceName(item))
      throw UsageError(Text(
          Excerpt(item), " is no interface and no IPv4 network; expected eth0 or 10.1.0.0/16"));
  return items;
}

std::vector<std::string> ResolveNetworks(
    const std::vector<std::string>& items, const std::vector<InterfaceNetwork>& known) {
  std::vector<std::string> networks;
  for (const std::string& item : items) {
    const size_t before = networks.size();
    if (IsNetwork(item)) networks.push_back(item);
    for (const InterfaceNetwork& own : known)
      if (own.interface == item) networks.push_back(own.network);
    if (networks.size() > before) continue;
    std::set<std::string> names;
    for (const InterfaceNetwork& own : known) names.insert(own.interface);
    throw UsageError(Text(
        "--network-interfaces ", item,
        ": this machine has no such interface with an IPv4 address; ", "it has ",
        base::Join({names.begin(), names.end()}, ", "),
        " (a network such as 10.1.0.0/16 may be named instead)"));
  }
  return networks;
}

std::vector<InterfaceNetwork> OwnNetworks() {
  std::vector<InterfaceNetwork> networks;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return networks;
  for (const ifaddrs* own = first; own != nullptr; own = own->ifa_next)
    if (own->ifa_addr != nullptr && own->ifa_netmask != nullptr &&
        own->ifa_addr->sa_family == AF_INET)
      networks.push_back({own->ifa_name, Network(own->ifa_addr, own->ifa_netmask)});
  freeifaddrs(first);
  return networks;
}

}  // namespace dtrun::launcher
