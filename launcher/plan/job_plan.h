#ifndef DTRUN_LAUNCHER_PLAN_JOB_PLAN_H_
#define DTRUN_LAUNCHER_PLAN_JOB_PLAN_H_

#include <string>
#include <vector>

#include "launcher/engines/launch_engine.h"
#include "launcher/hosts/hosts.h"
#include "launcher/networks/network_choice.h"
#include "launcher/plan/job_options.h"
#include "launcher/support/environment.h"

namespace dtrun::launcher {

/// All that is known before the job starts.
struct Plan {
  EngineCall call;        ///< but for the job's folder
  Variables environment;  ///< of mpirun, and so of the ranks on this machine
  int ranks_here = 0;     ///< on this machine
  std::string job;        ///< its random name
  std::string secret;     ///< 32 bytes in hex that only its ranks come to know; "": none needed
  std::string agent;      ///< file of dtrun_agent, the same on all hosts
  OutputOptions output;
  std::vector<std::string> wanted_networks = {};  ///< by the user: networks, names of interfaces
  bool chooses_master_address = false;            ///< the user has set no MASTER_ADDR
};

/// Places the ranks on `hosts` (job_options.h) and decides which variables they get.
/// Throws UsageError.
Plan PlanRanks(const Options& options, const std::vector<Host>& hosts);

/// Adds how they are started: finds the program, mpirun and the wrapper. Throws LaunchError.
void PlanCommand(const Options& options, Plan& plan);

/// How other hosts are reached: what `options` say of it, and the user's own parameters of Open MPI
/// among `plan`'s environment and mpi_args. Throws UsageError where they do not go together.
Reach PlanReach(const Options& options, const Plan& plan);

/// Those of this process.
Variables OwnVariables();

/// Which hosts of the placement are this machine.
std::vector<bool> OnThisMachine(const std::vector<base::HostSlots>& placement);

std::string OwnHostName();

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

#endif  // DTRUN_LAUNCHER_PLAN_JOB_PLAN_H_
