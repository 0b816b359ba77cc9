#ifndef DTRUN_LAUNCHER_NETWORKS_NETWORK_CHOICE_H_
#define DTRUN_LAUNCHER_NETWORKS_NETWORK_CHOICE_H_

#include <string>
#include <vector>

#include "launcher/networks/network_survey.h"

namespace dtrun::launcher {

/// The networks that Open MPI is to use, with the reasons.
struct NetworkChoice {
  /// IPv4 networks that hold the chosen interfaces of all hosts and, if possible, no other
  /// interface. Empty if there is no such list, or if the routes between the hosts are not known.
  std::vector<std::string> include = {};
  /// Used if `include` is empty: the networks of the interfaces that are not chosen, and loopback.
  std::vector<std::string> exclude = {};
  /// For each host, its address for the other hosts; "": not known.
  std::vector<std::string> addresses = {};
  std::vector<std::string> reasons = {};  ///< for the user: a line for each host, one for all
};

/// Chooses, on each host, the interfaces through which the kernel routes to the other hosts. This
/// leaves out bridges, which may have the same addresses on all hosts. The names of interfaces do
/// not matter. If the routes of a host are not known, chooses its interfaces with hardware, or all
/// if none has hardware.
NetworkChoice ChooseNetworks(const std::vector<HostNetworks>& hosts);

/// Chooses the interfaces that the user wants: networks ("10.1.0.0/16") and names of interfaces. A
/// name means the networks of that interface in `here`, the interfaces of this machine. On a host
/// without an interface in these networks, a name means the interface of that name. Throws
/// UsageError as CheckNames does. Throws LaunchError kUnavailable if a host has no wanted
/// interface, or if two hosts have the same address there.
NetworkChoice UseNetworks(
    const std::vector<HostNetworks>& hosts, const std::vector<std::string>& wanted,
    const std::vector<Interface>& here);

/// Throws UsageError for the name of a wanted interface that neither a host nor `here` has.
void CheckNames(
    const std::vector<HostNetworks>& hosts, const std::vector<std::string>& wanted,
    const std::vector<Interface>& here);

/// The wanted networks. A name that `here` does not have is left out.
std::vector<std::string> WantedNetworks(
    const std::vector<std::string>& wanted, const std::vector<Interface>& here);

/// The items of --network-interfaces: names of interfaces, or IPv4 networks ("10.1.0.0/16"). Throws
/// UsageError.
std::vector<std::string> ParseNetworks(const std::string& text);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_NETWORKS_NETWORK_CHOICE_H_
