#ifndef DTRUN_LAUNCHER_PLAN_JOB_OPTIONS_H_
#define DTRUN_LAUNCHER_PLAN_JOB_OPTIONS_H_

#include <functional>
#include <string>
#include <vector>

#include "base/launch_env.h"
#include "launcher/engines/launch_engine.h"
#include "launcher/hosts/hosts.h"
#include "launcher/output/output_lines.h"
#include "launcher/plan/cpu_binding.h"

namespace dtrun::launcher {

/// The user's request. Only kRun starts ranks.
enum class Action {
  kRun,
  kDryRun,
  kPrintConfig,
  kPrintEnv,
  kCheckBuild,
  kAttach,
  kCompletion,
  kVersion,
  kHelpAll,
  kHelp,
};

/// The parsed settings of the user. cli/option_table.cc has one row for each field that the user
/// can set.
struct Options {
  Action action = Action::kRun;
  std::vector<std::string> program = {};  ///< with its arguments, unchanged
  std::string attach = {};                ///< with kAttach: the name of the job
  bool verbose = false;

  // Ranks and hosts.
  int ranks = 0;                 ///< 0: one for each slot of the hosts
  std::vector<Host> hosts = {};  ///< of -H; empty: FindHosts uses another source
  std::string hostfile = {};
  int slots_per_host = 0;  ///< of hosts without a number of slots; 0: one
  bool oversubscribe = false;
  const LaunchEngine* engine = nullptr;  ///< starts the ranks; null: ChooseLaunchEngine decides
  int servers = 0;                       ///< number of ranks that hold variables; the first ranks
  bool evaluator = false;                ///< with servers: the last rank is no worker (TF_CONFIG)
  int restarts = 0;                      ///< how often lost ranks are started again
  int min_ranks = 0;           ///< with restarts: the job goes on with so many ranks; 0: needs all
  int max_ranks = 0;           ///< with discovery: the job grows to so many; 0: does not grow
  std::string discovery = {};  ///< program that prints the hosts; "": none

  // Resources of a rank.
  Bind bind = Bind::kAuto;
  int threads = 0;                         ///< 0: its share of the CPUs
  std::vector<std::string> exported = {};  ///< variables that other hosts always get
  std::vector<std::string> env_allow = {};
  std::vector<std::string> env_deny = {};
  bool stdin_to_rank_0 = false;
  base::Environment knobs = {};  ///< DTRUN_ variables for the library, set by options

  std::string inject = {};  ///< faults that dtrun makes on purpose (ParseFaults); "": none

  // Time limits; 0: none.
  int timeout_s = 0;
  int start_timeout_s = 60;
  int host_wait_s = -1;  ///< how long dtrun tries to reach a host; -1: CompleteOptions decides
  int host_timeout_s = 30;
  int elastic_timeout_s = 600;  ///< how long a job with too few ranks waits for hosts
  int orphan_grace_s = 0;       ///< how long the job outlives a lost dtrun; 0: it does not
  int grace_s = 10;             ///< from the notice to the ranks to their end; 0: no notice

  // Connections to hosts.
  std::vector<std::string> networks = {};  ///< names of interfaces, or networks (CIDR)
  int fanout = 32;   ///< hosts that one process reaches, and they reach others; 0: any number
  int ssh_port = 0;  ///< 0: from the user's ssh configuration
  std::string ssh_identity = {};
  std::vector<std::string> mpi_args = {};  ///< words for mpirun

  // Output.
  OutputOptions output = {};       ///< without the ranks to show
  std::string shown_ranks = {};    ///< ranks to show, as the user wrote them; "": all
  std::string flight_record = {};  ///< file for the last operations of the ranks; "": none
  std::string timeline = {};       ///< file for the timeline of the ranks; "": none
  bool progress = false;           ///< show the progress of the ranks
  std::string metrics_file = {};   ///< file for the metrics of the running ranks; "": none
  std::string report_json = {};    ///< file for the report on the end of the job; "": none
  std::string json = {};           ///< file for the JSON of --dry-run and doctor; "": none
};

/// Input besides the command line.
struct Surroundings {
  std::function<std::string(const std::string& path)> read_file;  ///< throws UsageError
  base::GetEnv get;
};

/// The text of the user's file `path`. An error begins with `what`, the purpose of the file: "host
/// file /tmp: Is a directory". Throws UsageError.
std::string ReadNamedFile(
    const std::string& what, const std::string& path, const Surroundings& surroundings);

/// Sets what follows from other options. If the hosts come from TF_CONFIG, it sets `servers` and
/// `evaluator` to those of its cluster. Also decides how long to wait for hosts. Throws UsageError
/// if --ps or -np contradicts a cluster with servers.
void CompleteOptions(Options& options, const Surroundings& surroundings);

/// The hosts of a job, each with its slots and its origin, from the first source that names any:
///
/// - -H or --hostfile, on the command line or in the configuration file,
/// - TF_CONFIG, unless an outer dtrun has set it for its rank,
/// - the allocation of Slurm, PBS, LSF or Grid Engine,
/// - the host file that the environment names to an mpirun (OMPI_MCA_orte_default_hostfile and
///   those of MPICH and Intel MPI), as in a launcher of Kubernetes' MPI operator,
/// - this host, with --slots-per-host or -np slots.
///
/// Call CompleteOptions before. Empty if no source gives the number of ranks. Throws UsageError.
std::vector<Host> FindHosts(const Options& options, const Surroundings& surroundings);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_PLAN_JOB_OPTIONS_H_
