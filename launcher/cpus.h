#ifndef DTRUN_LAUNCHER_CPUS_H_
#define DTRUN_LAUNCHER_CPUS_H_

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

}  // namespace dtrun::launcher

#endif
