#ifndef DTRUN_LAUNCHER_NETWORKS_H_
#define DTRUN_LAUNCHER_NETWORKS_H_

#include <string>
#include <vector>

namespace dtrun::launcher {

/// The items of --network-interfaces, names of interfaces or IPv4 networks ("10.1.0.0/16").
/// Throws UsageError.
std::vector<std::string> ParseNetworks(const std::string& text);

/// An IPv4 network that an interface of this machine is in.
struct InterfaceNetwork {
  std::string interface;
  std::string network;  ///< "10.1.0.0/16"
};

/// The networks that `items` name: an interface stands for its networks, so that it may be called
/// otherwise on another host. Throws UsageError for an interface that `known` does not have.
std::vector<std::string> ResolveNetworks(
    const std::vector<std::string>& items, const std::vector<InterfaceNetwork>& known);

/// Those of this machine.
std::vector<InterfaceNetwork> OwnNetworks();

}  // namespace dtrun::launcher

#endif
