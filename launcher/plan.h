#ifndef DTRUN_LAUNCHER_PLAN_H_
#define DTRUN_LAUNCHER_PLAN_H_

#include <string>
#include <vector>

#include "launcher/environment.h"
#include "launcher/host.h"
#include "launcher/mpirun.h"
#include "launcher/options.h"

namespace dtrun::launcher {

/// All that is known before the job starts.
struct Plan {
  MpirunCall call;        ///< but for the job's folder
  Variables environment;  ///< of mpirun, and so of the ranks on this machine
  int ranks_here = 0;     ///< on this machine
  std::string job;        ///< its random name
  std::string secret;     ///< 32 bytes in hex that only its ranks come to know; "": none needed
  std::string agent;      ///< file of dtrun_agent, the same on all hosts
  OutputOptions output;
  std::vector<std::string> wanted_networks = {};  ///< by the user: networks, names of interfaces
  bool chooses_master_address = false;            ///< the user has set no MASTER_ADDR
};

/// Places the ranks on `hosts` (host_sources.h) and decides which variables they get.
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

}  // namespace dtrun::launcher

#endif
