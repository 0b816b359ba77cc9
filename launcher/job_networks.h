#ifndef DTRUN_LAUNCHER_JOB_NETWORKS_H_
#define DTRUN_LAUNCHER_JOB_NETWORKS_H_

#include <string>
#include <vector>

#include "launcher/network_choice.h"
#include "launcher/plan.h"

namespace dtrun::launcher {

/// Checks the names of interfaces where this machine is the only host; another one is asked for its
/// own. Throws UsageError.
void CheckWantedNetworks(const Plan& plan);

/// Decides, now that all hosts have told of their networks, which of them Open MPI is to use, and
/// at which address the ranks of other hosts find the first host: completes `plan.call.reach` and
/// the environment. What the user has told Open MPI stays. Returns the reasons, for people. Throws
/// LaunchError kUnavailable where a host has nothing of what the user wants, and UsageError.
std::vector<std::string> SettleNetworks(const std::vector<HostNetworks>& hosts, Plan& plan);

/// The same as far as this machine alone can tell, for --dry-run: whatever else it may choose, the
/// job asks the hosts.
std::vector<std::string> GuessNetworks(Plan& plan);

}  // namespace dtrun::launcher

#endif
