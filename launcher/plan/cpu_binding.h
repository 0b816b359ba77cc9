#ifndef DTRUN_LAUNCHER_PLAN_CPU_BINDING_H_
#define DTRUN_LAUNCHER_PLAN_CPU_BINDING_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace dtrun::launcher {

/// One logical CPU and where it is; 0 where the machine does not say.
struct Cpu {
  int id = 0;
  int core = 0;  ///< unique within its socket
  int socket = 0;
  int numa = 0;

  bool operator==(const Cpu&) const = default;
};

/// Where one rank computes.
struct CpuPlan {
  std::vector<int> pinned = {};  ///< the CPUs it may use; empty: all that the host allows
  int threads = 1;
  bool oversubscribed = false;  ///< its host has more ranks than CPUs

  bool operator==(const CpuPlan&) const = default;
};

/// Divides the `allowed` CPUs of a host evenly and in order over its `local_size` ranks; the first
/// ranks get what is left over. When there are more ranks than CPUs, or than `quota` (the CPUs'
/// worth of time that the container may use), nobody is pinned and each rank computes with one
/// thread.
///   PlanCpus({0, 1, 2, 3, 4}, nothing, 0, 2)  ->  CPUs 0, 1, 2 with 3 threads
CpuPlan PlanCpus(
    const std::vector<int>& allowed, std::optional<double> quota, int local_rank, int local_size);

/// Text of a file; nothing when it cannot be read.
using ReadFile = std::function<std::optional<std::string>(const std::string& path)>;

/// The tightest CPU limit of the control groups that this process is in, version 1 or 2, in CPUs;
/// nothing without a limit. `read` is asked for /proc/self/cgroup and files of /sys/fs/cgroup.
std::optional<double> CpuQuota(const ReadFile& read);

/// The CPUs this process may run on, those of one core and one socket side by side.
std::vector<Cpu> AllowedCpus();

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

#endif  // DTRUN_LAUNCHER_PLAN_CPU_BINDING_H_
