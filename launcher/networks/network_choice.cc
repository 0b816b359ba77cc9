// Open MPI 4 takes one list of networks for all hosts. It prints a warning on each host that has no
// interface in one of them. Decide therefore looks for a single network: the smallest that holds
// the chosen interfaces of all hosts and none that is left out. If there is no such network, Open
// MPI gets a list of networks to exclude. That list may contain networks that a host does not have.

#include "launcher/networks/network_choice.h"

#include <arpa/inet.h>
#include <net/if.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <map>
#include <optional>

#include "base/text.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {
namespace {

using base::Join;
using base::Text;
using Interfaces = std::vector<Interface>;

constexpr int kFewestBits = 4;  // a network with a shorter prefix is not used

// `interface` must have an IPv4 address.
Ipv4Network NetworkOf(const Interface& interface) {
  return Ipv4Network::Of(*Ipv4(interface.address), interface.prefix);
}

// The interfaces of a host that have an address, in two groups. Loopback is in neither group.
struct Division {
  Interfaces chosen, left_out;
};

template <typename Choose>
Division Divide(const Interfaces& interfaces, Choose choose) {
  Division division;
  for (const Interface& interface : interfaces) {
    if (!Ipv4(interface.address) || interface.kind == InterfaceKind::kLoopback) continue;
    (choose(interface) ? division.chosen : division.left_out).push_back(interface);
  }
  return division;
}

Division DivideByRoute(const HostNetworks& host, bool& routed) {
  const auto leads_to_others = [&](const Interface& interface) {
    return std::find(host.sources.begin(), host.sources.end(), interface.address) !=
           host.sources.end();
  };
  Division division = Divide(host.interfaces, leads_to_others);
  routed = !division.chosen.empty();
  if (routed) return division;
  division = Divide(host.interfaces, [](const Interface& interface) {
    return interface.kind == InterfaceKind::kDevice;
  });
  // In a container, the only way out may be a virtual interface.
  if (division.chosen.empty()) std::swap(division.chosen, division.left_out);
  return division;
}

bool HoldsAny(
    const Ipv4Network& block, const std::vector<Division>& hosts, Interfaces Division::*group) {
  for (const Division& host : hosts)
    for (const Interface& interface : host.*group)
      if (block.Has(*Ipv4(interface.address))) return true;
  return false;
}

std::optional<Ipv4Network> SmallestWithAll(const std::vector<Division>& hosts) {
  std::optional<Ipv4Network> block;
  for (const Division& host : hosts)
    for (const Interface& interface : host.chosen) {
      const Ipv4Network network = NetworkOf(interface);
      if (!block) block = network;
      const int common = std::countl_zero(block->first ^ network.first);
      block = Ipv4Network::Of(network.first, std::min({block->bits, network.bits, common}));
    }
  return block && block->bits >= kFewestBits ? block : std::nullopt;
}

// The networks of the interfaces that are left out, and loopback. No chosen interface lies in any
// of them. Empty if loopback is the only one.
std::vector<std::string> NetworksLeftOut(const std::vector<Division>& hosts) {
  std::vector<std::string> networks = {"127.0.0.0/8"};
  for (const Division& host : hosts)
    for (const Interface& interface : host.left_out) {
      const Ipv4Network network = NetworkOf(interface);
      const std::string text = network.text();
      if (!HoldsAny(network, hosts, &Division::chosen) &&
          std::find(networks.begin(), networks.end(), text) == networks.end())
        networks.push_back(text);
    }
  return networks.size() > 1 ? networks : std::vector<std::string>{};
}

std::string Listed(const Interfaces& interfaces) {
  std::vector<std::string> words;
  for (const Interface& interface : interfaces) words.push_back(InterfaceInWords(interface));
  return Join(words, ", ");
}

std::string Reason(const std::string& host, const Division& division, const std::string& why) {
  std::string reason = Text(
      "network of ", host, ": ",
      division.chosen.empty() ? "none is known" : Text(Listed(division.chosen), ", ", why));
  if (!division.left_out.empty()) reason += "; not " + Listed(division.left_out);
  return reason;
}

std::string AddressOf(const HostNetworks& host, const Division& division) {
  for (const std::string& source : host.sources)
    for (const Interface& interface : division.chosen)
      if (interface.address == source) return source;
  return division.chosen.size() == 1 ? division.chosen[0].address : "";
}

bool AnyLeftOut(const std::vector<Division>& hosts) {
  return std::any_of(
      hosts.begin(), hosts.end(), [](const Division& host) { return !host.left_out.empty(); });
}

void Decide(const std::vector<Division>& hosts, bool all_routed, NetworkChoice& choice) {
  const std::optional<Ipv4Network> block = SmallestWithAll(hosts);
  if (all_routed && block && !HoldsAny(*block, hosts, &Division::left_out)) {
    choice.include = {block->text()};
    choice.reasons.push_back("the job uses " + choice.include[0]);
    return;
  }
  choice.exclude = NetworksLeftOut(hosts);
  if (!choice.exclude.empty())
    choice.reasons.push_back("the job uses all networks but " + Join(choice.exclude, ", "));
  else
    choice.reasons.push_back(Text(
        "the job uses any network",
        AnyLeftOut(hosts) ? ": no network separates the chosen interfaces from the others; "
                            "name the networks to use with --network-interfaces"
                          : ""));
}

bool IsInAny(const Interface& interface, const std::vector<std::string>& networks) {
  return std::any_of(networks.begin(), networks.end(), [&](const std::string& network) {
    return IsInNetwork(interface.address, network);
  });
}

std::string ListedOf(const HostNetworks& host) {
  const Division all = Divide(host.interfaces, [](const Interface&) { return true; });
  return all.chosen.empty() ? "none but loopback" : Listed(all.chosen);
}

Division DivideByWish(
    const HostNetworks& host, const std::vector<std::string>& wanted,
    const std::vector<std::string>& networks) {
  Division division = Divide(
      host.interfaces, [&](const Interface& interface) { return IsInAny(interface, networks); });
  if (!division.chosen.empty()) return division;
  division = Divide(host.interfaces, [&](const Interface& interface) {
    return std::find(wanted.begin(), wanted.end(), interface.name) != wanted.end();
  });
  if (!division.chosen.empty()) return division;
  const std::string known = networks == wanted || networks.empty()
                                ? ""
                                : Text(", which is ", Join(networks, " or "), " here");
  throw LaunchError(
      ExitCode::kUnavailable, Text(
                                  "host ", host.host, " has no interface for --network-interfaces ",
                                  Join(wanted, ","), known, "; found ", ListedOf(host)));
}

// Two hosts may have the same address, for example on Docker's bridges. Packets to that address
// would never leave the sender.
void CheckAddressesDiffer(
    const std::vector<HostNetworks>& hosts, const std::vector<Division>& divisions) {
  std::map<std::string, size_t> owners;
  for (size_t i = 0; i < hosts.size(); ++i)
    for (const Interface& interface : divisions[i].chosen) {
      const auto [owner, is_first] = owners.try_emplace(interface.address, i);
      if (is_first || owner->second == i) continue;
      throw LaunchError(
          ExitCode::kUnavailable,
          Text(
              "hosts ", hosts[owner->second].host, " and ", hosts[i].host,
              " cannot reach each other through ", interface.name, ": both have the address ",
              interface.address, "; choose other networks with --network-interfaces"));
    }
}

// Open MPI warns on each host that lacks one of these networks, but still uses them.
void UseEachNetwork(const std::vector<Division>& hosts, NetworkChoice& choice) {
  for (const Division& host : hosts)
    for (const Interface& interface : host.chosen) {
      const std::string network = NetworkOf(interface).text();
      if (std::find(choice.include.begin(), choice.include.end(), network) == choice.include.end())
        choice.include.push_back(network);
    }
  choice.reasons.back() = "the job uses " + Join(choice.include, ", ");
}

bool EachIsInAll(const std::vector<Division>& hosts, const std::vector<std::string>& networks) {
  return !networks.empty() && std::all_of(hosts.begin(), hosts.end(), [&](const Division& host) {
    return std::all_of(networks.begin(), networks.end(), [&](const std::string& network) {
      return std::any_of(host.chosen.begin(), host.chosen.end(), [&](const Interface& interface) {
        return IsInNetwork(interface.address, network);
      });
    });
  });
}

}  // namespace

NetworkChoice ChooseNetworks(const std::vector<HostNetworks>& hosts) {
  NetworkChoice choice;
  std::vector<Division> divisions;
  bool all_routed = true;
  for (const HostNetworks& host : hosts) {
    bool routed = false;
    divisions.push_back(DivideByRoute(host, routed));
    all_routed = all_routed && routed;
    const Division& division = divisions.back();
    choice.addresses.push_back(AddressOf(host, division));
    choice.reasons.push_back(Reason(
        host.host, division,
        routed ? "the way to the other hosts" : "as the way to the others is not known"));
  }
  Decide(divisions, all_routed, choice);
  return choice;
}

std::vector<std::string> WantedNetworks(
    const std::vector<std::string>& wanted, const std::vector<Interface>& here) {
  std::vector<std::string> networks;
  for (const std::string& item : wanted) {
    if (item.find('/') != std::string::npos) networks.push_back(item);
    for (const Interface& own : here)
      if (own.name == item && Ipv4(own.address)) networks.push_back(NetworkOf(own).text());
  }
  return networks;
}

void CheckNames(
    const std::vector<HostNetworks>& hosts, const std::vector<std::string>& wanted,
    const std::vector<Interface>& here) {
  for (const std::string& item : wanted) {
    const std::vector<std::string> name = {item};
    const bool known = !WantedNetworks(name, here).empty() ||
                       std::any_of(hosts.begin(), hosts.end(), [&](const HostNetworks& host) {
                         return !WantedNetworks(name, host.interfaces).empty();
                       });
    if (!known)
      throw UsageError(Text(
          "--network-interfaces ", item, ": no host has such an interface with an IPv4 address; ",
          hosts.front().host, " has ", ListedOf(hosts.front()),
          " (a network such as 10.1.0.0/16 may be named instead)"));
  }
}

NetworkChoice UseNetworks(
    const std::vector<HostNetworks>& hosts, const std::vector<std::string>& wanted,
    const std::vector<Interface>& here) {
  CheckNames(hosts, wanted, here);
  const std::vector<std::string> networks = WantedNetworks(wanted, here);
  NetworkChoice choice;
  std::vector<Division> divisions;
  for (const HostNetworks& host : hosts) {
    divisions.push_back(DivideByWish(host, wanted, networks));
    const Division& division = divisions.back();
    const std::string routed = AddressOf(host, division);
    choice.addresses.push_back(routed.empty() ? division.chosen[0].address : routed);
    choice.reasons.push_back(Reason(host.host, division, "as --network-interfaces says"));
  }
  CheckAddressesDiffer(hosts, divisions);
  if (EachIsInAll(divisions, networks)) {
    choice.include = networks;
    choice.reasons.push_back("the job uses " + Join(networks, ", "));
    return choice;
  }
  Decide(divisions, true, choice);
  const bool nothing_said = choice.include.empty() && choice.exclude.empty();
  if (nothing_said && AnyLeftOut(divisions)) UseEachNetwork(divisions, choice);
  return choice;
}

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
          Excerpt(item),
          " is neither an interface nor an IPv4 network; expected a name such as eth0 or a network "
          "such as 10.1.0.0/16"));
  return items;
}

}  // namespace dtrun::launcher
