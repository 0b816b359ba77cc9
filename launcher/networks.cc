#include "launcher/networks.h"

#include <arpa/inet.h>
#include <net/if.h>

#include <algorithm>
#include <cctype>
#include <optional>

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

}  // namespace

std::vector<std::string> ParseNetworks(const std::string& text) {
  const std::vector<std::string> items = base::Split(text, ',');
  for (const std::string& item : items)
    if (!IsNetwork(item) && !IsInterfaceName(item))
      throw UsageError(Text(
          Excerpt(item), " is no interface and no IPv4 network; expected eth0 or 10.1.0.0/16"));
  return items;
}

}  // namespace dtrun::launcher
