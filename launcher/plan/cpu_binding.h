#ifndef DTRUN_LAUNCHER_PLAN_CPU_BINDING_H_
#define DTRUN_LAUNCHER_PLAN_CPU_BINDING_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace dtrun::launcher {

/// One logical CPU and its place in the machine. 0: the place is not known.
struct Cpu {
  int id = 0;
  int core = 0;  ///< unique within its socket
  int socket = 0;
  int numa = 0;

  bool operator==(const Cpu&) const = default;
};

/// The CPUs and the threads of one rank.
struct CpuPlan {
  std::vector<int> pinned = {};  ///< CPUs that it may use; empty: all that the host allows
  int threads = 1;
  bool oversubscribed = false;  ///< more ranks than CPUs to run them

  bool operator==(const CpuPlan&) const = default;
};

/// Divides the `allowed` CPUs of a host evenly and in order among its `local_size` ranks. The first
/// ranks get the remainder. If there are more ranks than CPUs, no rank is pinned and each rank has
/// one thread. The same holds for more ranks than `quota`, the CPUs' worth of time that the
/// container may use. A single rank is not pinned.
///   PlanCpus({0, 1, 2, 3, 4}, nullopt, 0, 2)  ->  CPUs 0, 1, 2 with 3 threads
CpuPlan PlanCpus(
    const std::vector<int>& allowed, std::optional<double> quota, int local_rank, int local_size);

/// Returns the text of a file; nullopt: it cannot be read.
using ReadFile = std::function<std::optional<std::string>(const std::string& path)>;

/// The lowest CPU limit of the control groups of this process (version 1 or 2), in CPUs; nullopt:
/// no limit. Calls `read` for /proc/self/cgroup and for files of /sys/fs/cgroup.
std::optional<double> CpuQuota(const ReadFile& read);

/// The CPUs that this process may run on, sorted by socket and core.
std::vector<Cpu> AllowedCpus();

/// The unit by which the CPUs of a host are divided among its ranks.
enum class Bind {
  kAuto,    ///< single CPUs; if there are too few, no rank is pinned
  kNone,    ///< no rank is pinned
  kCore,    ///< every rank has whole cores for itself
  kSocket,  ///< every rank has whole sockets; if there are too few, ranks share them
  kNuma,    ///< the same with NUMA nodes
};

/// The Bind of a word such as "core"; nullopt: none.
std::optional<Bind> ParseBind(const std::string& word);
std::string BindName(Bind bind);

/// The CPUs and the number of threads of rank `local_rank` of the `local_size` ranks on a host that
/// allows `cpus`. The units are dealt out in order and as evenly as possible. If there are more
/// ranks than sockets or NUMA nodes, neighbouring ranks share a unit. Throws LaunchError kUsage if
/// kCore finds fewer cores than ranks.
///   2 sockets of 4 CPUs, kSocket, 4 ranks  ->  ranks 0, 1: CPUs 0-3; ranks 2, 3: CPUs 4-7; 2
///   threads
CpuPlan BindCpus(
    const std::vector<Cpu>& cpus, std::optional<double> quota, Bind bind, int local_rank,
    int local_size);

/// "CPU 3", "CPUs 0-3,8"; "all CPUs" for an empty list.
std::string CpusInWords(const std::vector<int>& cpus);

/// "0-3,8"
std::string CpuList(std::vector<int> cpus);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_PLAN_CPU_BINDING_H_
