#include "launcher/hosts.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <optional>

#include "base/text.h"
#include "launcher/launch_error.h"
#include "launcher/quoting.h"

namespace dtrun::launcher {
namespace {

constexpr size_t kMaxHostLength = 253;  // of a DNS name, RFC 1035

[[noreturn]] void Refuse(const std::string& item, size_t column, const std::string& why) {
  throw UsageError(base::Text("-H item ", ShellQuoted(item), " (column ", column, "): ", why));
}

bool AllOf(const std::string& text, const char* punctuation) {
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) ||
           (c != '\0' && std::strchr(punctuation, c) != nullptr);
  });
}

bool IsBracketedIpv6(const std::string& name) {
  if (name.size() < 4 || name.front() != '[' || name.back() != ']') return false;
  const std::string address = name.substr(1, name.size() - 2);
  return address.find(':') != std::string::npos &&
         address.find_first_not_of("0123456789abcdefABCDEF:.") == std::string::npos;
}

bool IsHostName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxHostLength && name.front() != '-' &&
         AllOf(name, "._-");
}

HostSlots ParseHost(const std::string& item, size_t column) {
  // The colons of an IPv6 address stand before its bracket.
  const size_t colon = item.find(':', item.starts_with('[') ? item.find(']') : 0);
  HostSlots host = {item.substr(0, colon), 1};
  if (item.empty()) Refuse(item, column, "a host is missing");
  if (host.name.starts_with('[') && !IsBracketedIpv6(host.name))
    Refuse(item, column, "expected an IPv6 address in brackets, such as [::1]:2");
  if (!host.name.starts_with('[') && !IsHostName(host.name))
    Refuse(
        item, column,
        "expected host:slots with a host of letters, digits, '.', '_' and '-' that does not begin "
        "with '-'");
  if (colon != std::string::npos) {
    const std::string slots = item.substr(colon + 1);
    const std::optional<int64_t> count = base::ParseInteger(slots);
    if (!count || *count < 1 || *count > kMaxRanks)
      Refuse(
          item, column,
          base::Text(
              "expected a number of slots from 1 to ", kMaxRanks, ", got ", ShellQuoted(slots)));
    host.slots = static_cast<int>(*count);
  }
  return host;
}

}  // namespace

std::vector<HostSlots> ParseHosts(const std::string& text) {
  std::vector<HostSlots> hosts;
  int64_t slots = 0;
  size_t column = 1;
  for (const std::string& item : base::Split(text, ',')) {
    const HostSlots host = ParseHost(item, column);
    for (const HostSlots& earlier : hosts)
      if (earlier.name == host.name) Refuse(item, column, "this host stands there twice");
    slots += host.slots;
    if (slots > kMaxRanks) Refuse(item, column, base::Text("more than ", kMaxRanks, " slots"));
    hosts.push_back(host);
    column += item.size() + 1;
  }
  return hosts;
}

std::vector<HostSlots> PlaceRanks(const std::vector<HostSlots>& hosts, int ranks) {
  if (ranks > base::RankCount(hosts))
    throw UsageError(base::Text(
        "requested ", ranks, ranks == 1 ? " rank" : " ranks", ", but the host list has ",
        base::RankCount(hosts), base::RankCount(hosts) == 1 ? " slot (" : " slots (",
        HostList(hosts), ")"));
  std::vector<HostSlots> placement;
  for (const HostSlots& host : hosts) {
    if (ranks == 0) break;
    placement.push_back({host.name, std::min(host.slots, ranks)});
    ranks -= placement.back().slots;
  }
  return placement;
}

std::string HostList(const std::vector<HostSlots>& hosts) {
  std::vector<std::string> items;
  for (const HostSlots& host : hosts) items.push_back(base::Text(host.name, ':', host.slots));
  return base::Join(items, ",");
}

bool IsThisMachine(const std::string& name, const std::string& own_name) {
  return name == "localhost" || name == "[::1]" || name.starts_with("127.") || name == own_name ||
         name == own_name.substr(0, own_name.find('.'));
}

}  // namespace dtrun::launcher
