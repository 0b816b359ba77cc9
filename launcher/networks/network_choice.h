#ifndef DTRUN_LAUNCHER_NETWORKS_NETWORK_CHOICE_H_
#define DTRUN_LAUNCHER_NETWORKS_NETWORK_CHOICE_H_

#include <string>
#include <vector>

#include "launcher/networks/network_interfaces.h"

namespace dtrun::launcher {

/// What a host of a job says of its networks.
struct HostNetworks {
  std::string host;
  std::vector<Interface> interfaces;
  /// By host of the job: the own address from which packets to it leave, as the kernel routes them;
  /// "" for itself and where nobody knows.
  std::vector<std::string> sources;
};

/// The networks that Open MPI is to use, and why.
struct NetworkChoice {
  /// IPv4 networks in which every host has its chosen interfaces and no other. Empty where no such
  /// list exists, or nobody knows the way between the hosts.
  std::vector<std::string> include = {};
  /// Then this: what holds the interfaces that are not chosen, and loopback.
  std::vector<std::string> exclude = {};
  /// By host: the address at which the others reach it; "" where nobody knows.
  std::vector<std::string> addresses = {};
  std::vector<std::string> reasons = {};  ///< for people, a line for each host and one for all
};

/// Chooses, on each host, the interfaces through which the kernel routes to the other hosts, so
/// that bridges and the like, which may have the same addresses on all hosts, are left out, and
/// their names do not matter. Where routes are not known those count that have hardware behind
/// them.
NetworkChoice ChooseNetworks(const std::vector<HostNetworks>& hosts);

/// The same for what the user wants: networks ("10.1.0.0/16") and names of interfaces. A name
/// stands for its networks among `here`, the interfaces of this machine, and for itself on a host
/// that is in none of these. Throws UsageError as CheckNames does, and LaunchError kUnavailable for
/// a host that has nothing of it, or shares an address with another one.
NetworkChoice UseNetworks(
    const std::vector<HostNetworks>& hosts, const std::vector<std::string>& wanted,
    const std::vector<Interface>& here);

/// Throws UsageError for a wanted name that no host has, nor `here`.
void CheckNames(
    const std::vector<HostNetworks>& hosts, const std::vector<std::string>& wanted,
    const std::vector<Interface>& here);

/// The networks that are wanted, as far as `here` knows the names.
std::vector<std::string> WantedNetworks(
    const std::vector<std::string>& wanted, const std::vector<Interface>& here);

/// The items of --network-interfaces, names of interfaces or IPv4 networks ("10.1.0.0/16").
/// Throws UsageError.
std::vector<std::string> ParseNetworks(const std::string& text);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_NETWORKS_NETWORK_CHOICE_H_
