#ifndef DTRUN_LAUNCHER_NETWORKS_H_
#define DTRUN_LAUNCHER_NETWORKS_H_

#include <string>
#include <vector>

namespace dtrun::launcher {

/// The items of --network-interfaces, names of interfaces or IPv4 networks ("10.1.0.0/16").
/// Throws UsageError.
std::vector<std::string> ParseNetworks(const std::string& text);

}  // namespace dtrun::launcher

#endif
