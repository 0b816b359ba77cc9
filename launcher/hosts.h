#ifndef DTRUN_LAUNCHER_HOSTS_H_
#define DTRUN_LAUNCHER_HOSTS_H_

#include <string>
#include <vector>

#include "base/launch_env.h"

namespace dtrun::launcher {

using base::HostSlots;

/// More ranks or slots than this are a typing error.
inline constexpr int kMaxRanks = 1'000'000;

/// The hosts of `-H`. A host is a name or address of letters, digits, '.', '_' and '-' that does
/// not begin with '-', or an IPv6 address in brackets; without ":slots" it has one slot.
///   "node1:2,[fd00::1]:4,node2"  ->  {{"node1", 2}, {"[fd00::1]", 4}, {"node2", 1}}
/// Throws UsageError that names the item and the column where it begins; a host that stands there
/// twice is such an error.
std::vector<HostSlots> ParseHosts(const std::string& text);

/// The hosts that `ranks` ranks need, filled in order, with the slots in use.
/// Throws UsageError when there are more ranks than slots.
std::vector<HostSlots> PlaceRanks(const std::vector<HostSlots>& hosts, int ranks);

/// "localhost:2,node1:4"
std::string HostList(const std::vector<HostSlots>& hosts);

/// Whether `name` is this machine, which calls itself `own_name`.
bool IsThisMachine(const std::string& name, const std::string& own_name);

}  // namespace dtrun::launcher

#endif
