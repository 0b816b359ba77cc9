#ifndef DTRUN_RUNTIME_CPUS_H_
#define DTRUN_RUNTIME_CPUS_H_

#include <optional>
#include <string>
#include <vector>

namespace dtrun::runtime {

/// The CPUs that this process may run on, as a string of '0' and '1' by CPU number.
std::string AllowedCpus();

/// How many CPUs the control groups of this process let it use at a time, rounded up (versions 1
/// and 2, its own group and those above); nothing when there is no limit. `root` stands before the
/// paths of /proc and /sys.
std::optional<int> CpuQuota(const std::string& root = "");

/// How many CPUs at least one of the masks has.
int CountUnion(const std::vector<std::string>& masks);

}  // namespace dtrun::runtime

#endif
