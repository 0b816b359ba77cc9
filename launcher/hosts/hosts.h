#ifndef DTRUN_LAUNCHER_HOSTS_HOSTS_H_
#define DTRUN_LAUNCHER_HOSTS_HOSTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/launch_env.h"

namespace dtrun::launcher {

/// A host that may take ranks, as its source describes it.
struct Host {
  std::string name;
  int slots = 0;            ///< ranks meant for it; 0: not given
  int max_slots = 0;        ///< limit for its ranks, also if oversubscribed; 0: no limit
  std::string origin = {};  ///< source: "-H", "hosts.txt:3", "SLURM_JOB_NODELIST"

  bool operator==(const Host&) const = default;
};

using base::HostSlots;

/// Limit for ranks and slots. A larger number is a typing error.
inline constexpr int kMaxRanks = 1'000'000;

/// Checks that `name` can be a host: letters, digits, '.', '_' and '-' that do not begin with '-',
/// or an IPv6 address in brackets. Returns nullopt, or the expected form.
std::optional<std::string> RefusalOfHost(const std::string& name);

/// A number of slots from 1 to kMaxRanks; nullopt for any other text.
std::optional<int> ParseSlots(const std::string& text);

/// The hosts of `-H`. The number of slots is optional.
///   "node1:2,[fd00::1]:4,node2"  ->  {{"node1", 2}, {"[fd00::1]", 4}, {"node2", 0}}
/// Throws UsageError that names the item and its column, also for a repeated host.
std::vector<Host> ParseHosts(const std::string& text);

/// Places `ranks` ranks on the hosts, in order, and returns the used hosts with their slots in use.
/// With `oversubscribe`, the hosts take the ranks without a slot in turn, up to max_slots. The
/// slots of every host must be given.
///   a:2, b:2, 5 ranks, oversubscribe  ->  a:3, b:2
/// Throws UsageError if the ranks do not fit.
std::vector<HostSlots> PlaceRanks(
    const std::vector<Host>& hosts, int ranks, bool oversubscribe = false);

/// The sum of the slots.
int64_t SlotCount(const std::vector<Host>& hosts);

/// "localhost:2,node1:4"
std::string HostList(const std::vector<HostSlots>& hosts);

/// Whether `name` means this machine. `own_name` is this machine's host name, with or without its
/// domain: "n1.cluster" is "n1.cluster.example.org".
bool IsThisMachine(const std::string& name, const std::string& own_name);

/// The hosts of a host file in the format of Open MPI and Horovod, one host a line:
///   # comment
///   node1 slots=4 max_slots=8
///   node2:4
///   [fd00::3] max-slots=2
/// Accepts line ends of Unix and Windows, and a byte order mark. The origin of each host is its
/// line, "FILE:LINE". `name` is the file's name, for messages. Throws UsageError "FILE:LINE:COLUMN:
/// found ..., expected ..." for any other text, for a repeated host and for a file without hosts.
std::vector<Host> ParseHostfile(const std::string& name, const std::string& text);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_HOSTS_HOSTS_H_
