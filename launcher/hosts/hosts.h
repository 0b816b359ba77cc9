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
  int slots = 0;            ///< ranks it is meant for; 0: its source does not say
  int max_slots = 0;        ///< ranks it must not exceed, oversubscribed or not; 0: no limit
  std::string origin = {};  ///< who says so: "-H", "hosts.txt:3", "SLURM_JOB_NODELIST"

  bool operator==(const Host&) const = default;
};

using base::HostSlots;

/// More ranks or slots than this are a typing error.
inline constexpr int kMaxRanks = 1'000'000;

/// Whether `name` can be a host: letters, digits, '.', '_' and '-' that do not begin with '-', or
/// an IPv6 address in brackets. Nothing if it can, else what was expected.
std::optional<std::string> RefusalOfHost(const std::string& name);

/// A number of slots, 1 to kMaxRanks; nothing for any other text.
std::optional<int> ParseSlots(const std::string& text);

/// The hosts of `-H`, each with the number of slots that it may say.
///   "node1:2,[fd00::1]:4,node2"  ->  {{"node1", 2}, {"[fd00::1]", 4}, {"node2", 0}}
/// Throws UsageError that names the item and the column where it begins; a host that stands there
/// twice is such an error.
std::vector<Host> ParseHosts(const std::string& text);

/// The hosts that `ranks` ranks need, filled in order, with the slots in use. With `oversubscribe`
/// the ranks for which there is no slot are dealt out over all hosts, one each in turn, up to their
/// max_slots. Every host says its slots.
///   a:2, b:2, 5 ranks, oversubscribe  ->  a:3, b:2
/// Throws UsageError when there is no place for them.
std::vector<HostSlots> PlaceRanks(
    const std::vector<Host>& hosts, int ranks, bool oversubscribe = false);

/// Sum of the slots.
int64_t SlotCount(const std::vector<Host>& hosts);

/// "localhost:2,node1:4"
std::string HostList(const std::vector<HostSlots>& hosts);

/// Whether `name` is this machine, which calls itself `own_name`.
bool IsThisMachine(const std::string& name, const std::string& own_name);

/// The hosts of a host file, one a line, as Open MPI's and Horovod's users write it:
///   # comment
///   node1 slots=4 max_slots=8     node2:4     [fd00::3] max-slots=2
/// Line ends of Unix and of Windows, and a byte order mark, are understood. Every host has a line,
/// "FILE:LINE", as its origin. `name` is the file's, for messages.
/// Throws UsageError "FILE:LINE:COLUMN: found ..., expected ..." for anything else, for a host that
/// stands there twice and for a file without hosts.
std::vector<Host> ParseHostfile(const std::string& name, const std::string& text);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_HOSTS_HOSTS_H_
