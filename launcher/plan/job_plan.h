#ifndef DTRUN_LAUNCHER_PLAN_JOB_PLAN_H_
#define DTRUN_LAUNCHER_PLAN_JOB_PLAN_H_

#include <string>
#include <vector>

#include "launcher/engines/launch_engine.h"
#include "launcher/hosts/hosts.h"
#include "launcher/networks/network_choice.h"
#include "launcher/plan/fault_plan.h"
#include "launcher/plan/job_options.h"
#include "launcher/support/environment.h"

namespace dtrun::launcher {

/// The plan of a job, made before the job starts.
struct Plan {
  EngineCall call;        ///< complete except for the job's folder
  Variables environment;  ///< of mpirun, and so of the ranks on this machine
  int ranks_here = 0;     ///< number of ranks on this machine
  /// Hosts without ranks, with their slots. If lost ranks are started again, one of them takes the
  /// ranks of a lost host.
  std::vector<base::HostSlots> spares = {};
  /// All hosts that the user has named, with their slots.
  std::vector<base::HostSlots> listed = {};
  std::vector<std::string> addresses = {};  ///< of the hosts, then of the spares; "": not known
  std::string job;                          ///< random name
  std::string secret;  ///< 32 bytes in hex, known only to the ranks; "": not needed
  std::string agent;   ///< path of dtrun_agent, the same on all hosts
  OutputOptions output;
  std::vector<Fault> faults = {};                 ///< to make on purpose
  std::vector<std::string> wanted_networks = {};  ///< from the user: networks, names of interfaces
  bool chooses_master_address = false;            ///< the user has set no MASTER_ADDR
};

/// Throws UsageError for options of a job with --restarts that contradict each other.
void CheckElastic(const Options& options);

/// Places the ranks on `hosts`, the result of FindHosts, and sets their variables. Throws
/// UsageError.
Plan PlanRanks(const Options& options, const std::vector<Host>& hosts);

/// Adds the command: finds the program, the engine's program, the wrapper and the agent. Throws
/// LaunchError.
void PlanCommand(const Options& options, Plan& plan);

/// The next start of a job whose engine starts again after a loss (LaunchEngine::starts_again).
struct Restart {
  std::vector<base::HostSlots> placement;
  std::vector<std::string> variables;  ///< NAME=value, instead of those of the start before
};

/// The plan of the next start: `plan` of the first one, with what `restart` changes.
Plan PlanStartAgain(Plan plan, const Restart& restart);

/// How dtrun reaches other hosts, from `options` and from the user's own Open MPI parameters in
/// `plan`'s environment and mpi_args. Throws UsageError if they contradict each other.
Reach PlanReach(const Options& options, const Plan& plan);

/// The variables of this process.
Variables OwnVariables();

/// For each host of the placement, whether it is this machine.
std::vector<bool> OnThisMachine(const std::vector<base::HostSlots>& placement);

std::string OwnHostName();
/// Whether `host` is a name of this machine.
bool IsHere(const std::string& host);

/// The address or name at which all ranks reach a host, as far as this machine knows. If all ranks
/// are on it, it needs no network.
std::string AddressOf(const std::string& host, bool only_this_machine);

/// Checks the names of the wanted interfaces if this machine is the only host. Otherwise the hosts
/// are asked later. Throws UsageError.
void CheckWantedNetworks(const Plan& plan);

/// Completes `plan.call.reach` and the environment from the networks of all hosts. Chooses the
/// networks that the job uses, and the address at which other ranks reach the first host.
/// Parameters that the user has set for Open MPI stay. Returns the reasons, for the user. Throws
/// UsageError, or LaunchError kUnavailable if a host has no wanted network.
std::vector<std::string> SettleNetworks(const std::vector<HostNetworks>& hosts, Plan& plan);

/// The same for --dry-run, as far as this machine alone can tell. A job asks the hosts and may
/// choose other networks.
std::vector<std::string> GuessNetworks(Plan& plan);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_PLAN_JOB_PLAN_H_
