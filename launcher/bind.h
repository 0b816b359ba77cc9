#ifndef DTRUN_LAUNCHER_BIND_H_
#define DTRUN_LAUNCHER_BIND_H_

#include <optional>
#include <string>
#include <vector>

#include "launcher/cpus.h"

namespace dtrun::launcher {

/// What the CPUs of a host are divided by.
enum class Bind {
  kAuto,    ///< evenly where there are enough of them; nobody is pinned where not
  kNone,    ///< nobody is pinned
  kCore,    ///< every rank has whole cores of its own
  kSocket,  ///< every rank stays on one socket
  kNuma,    ///< every rank stays on one NUMA node
};

/// "core"; nothing for a word that is none of them.
std::optional<Bind> ParseBind(const std::string& word);
std::string BindName(Bind bind);

/// The CPUs of rank `local_rank` of the `local_size` ranks on a host that allows `cpus`, and its
/// number of threads. Ranks of one socket or NUMA node share its CPUs; they are dealt out in order,
/// as evenly as they go. Throws LaunchError kUsage when kCore finds fewer cores than ranks.
///   2 sockets of 4 CPUs, kSocket, 4 ranks  ->  ranks 0, 1: CPUs 0-3; ranks 2, 3: CPUs 4-7; 2
///   threads
CpuPlan BindCpus(
    const std::vector<Cpu>& cpus, std::optional<double> quota, Bind bind, int local_rank,
    int local_size);

/// "CPU 3", "CPUs 0-3,8"; without any they are all those of the host.
std::string CpusInWords(const std::vector<int>& cpus);

/// "0-3,8"
std::string CpuList(std::vector<int> cpus);

}  // namespace dtrun::launcher

#endif
