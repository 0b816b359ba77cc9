// Open MPI 4 takes one list of networks for all hosts, and says a warning on each host that has no
// interface in one of them. So the list is a single network wherever one can be found: that which
// the hosts share, else the smallest that holds the addresses of all and none of what is to be left
// out. Where there is none, Open MPI is told what to leave out; that list may name what a host does
// not have.

#include "launcher/network_choice.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "base/text.h"
#include "launcher/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::Join;
using base::Text;
using Interfaces = std::vector<Interface>;

constexpr int kFewestBits = 4;  // a network that holds more is none

struct Block {
  uint32_t first;
  int bits;

  uint32_t mask() const { return bits == 0 ? 0 : ~uint32_t{0} << (32 - bits); }
  bool Has(uint32_t address) const { return (address & mask()) == first; }
  std::string text() const { return Text(Ipv4Text(first), '/', bits); }
};

Block BlockOf(uint32_t address, int bits) {
  const Block block = {address, bits};
  return {address & block.mask(), bits};
}

// The interface has an IPv4 address.
Block NetworkOf(const Interface& interface) {
  return BlockOf(*Ipv4(interface.address), interface.prefix);
}

// The two groups that the interfaces with an address fall into; loopback is in none.
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
  // In a container the only way out may have no hardware behind it.
  if (division.chosen.empty()) std::swap(division.chosen, division.left_out);
  return division;
}

bool HoldsAny(const Block& block, const std::vector<Division>& hosts, Interfaces Division::*group) {
  for (const Division& host : hosts)
    for (const Interface& interface : host.*group)
      if (block.Has(*Ipv4(interface.address))) return true;
  return false;
}

std::optional<Block> SmallestWithAll(const std::vector<Division>& hosts) {
  std::optional<Block> block;
  for (const Division& host : hosts)
    for (const Interface& interface : host.chosen) {
      const Block network = NetworkOf(interface);
      if (!block) block = network;
      const int common = std::countl_zero(block->first ^ network.first);
      block = BlockOf(network.first, std::min({block->bits, network.bits, common}));
    }
  return block && block->bits >= kFewestBits ? block : std::nullopt;
}

// Nothing that is chosen lies in it.
std::vector<std::string> NetworksLeftOut(const std::vector<Division>& hosts) {
  std::vector<std::string> networks = {"127.0.0.0/8"};
  for (const Division& host : hosts)
    for (const Interface& interface : host.left_out) {
      const Block network = NetworkOf(interface);
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
  const std::optional<Block> block = SmallestWithAll(hosts);
  if (all_routed && block && !HoldsAny(*block, hosts, &Division::left_out)) {
    choice.include = {block->text()};
    choice.reasons.push_back("Open MPI uses " + choice.include[0]);
    return;
  }
  choice.exclude = NetworksLeftOut(hosts);
  if (!choice.exclude.empty())
    choice.reasons.push_back("Open MPI uses all networks but " + Join(choice.exclude, ", "));
  else
    choice.reasons.push_back(Text(
        "Open MPI chooses", AnyLeftOut(hosts) ? ": no network tells them apart; "
                                                "--network-interfaces names the ones to use"
                                              : ""));
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

NetworkChoice UseNetworks(
    const std::vector<HostNetworks>& hosts, const std::vector<std::string>& wanted) {
  NetworkChoice choice;
  for (const HostNetworks& host : hosts) {
    const Division division = Divide(host.interfaces, [&](const Interface& interface) {
      return std::any_of(wanted.begin(), wanted.end(), [&](const std::string& network) {
        return IsInNetwork(interface.address, network);
      });
    });
    if (division.chosen.empty())
      throw LaunchError(
          ExitCode::kUnavailable,
          Text(
              "host ", host.host, " has no interface in ", Join(wanted, " or "),
              " (--network-interfaces); it has ",
              division.left_out.empty() ? "none but loopback" : Listed(division.left_out)));
    const std::string routed = AddressOf(host, division);
    choice.addresses.push_back(routed.empty() ? division.chosen[0].address : routed);
    choice.reasons.push_back(Reason(host.host, division, "as --network-interfaces says"));
  }
  choice.include = wanted;
  choice.reasons.push_back("Open MPI uses " + Join(wanted, ", "));
  return choice;
}

bool IsInNetwork(const std::string& address, const std::string& network) {
  const size_t slash = network.find('/');
  if (slash == std::string::npos) return false;
  const auto first = Ipv4(network.substr(0, slash)), own = Ipv4(address);
  const int64_t bits = base::ParseInteger(network.substr(slash + 1)).value_or(-1);
  if (!first || !own || bits < 0 || bits > 32) return false;
  return BlockOf(*first, static_cast<int>(bits)).Has(*own);
}

}  // namespace dtrun::launcher
