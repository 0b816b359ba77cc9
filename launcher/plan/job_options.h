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

/// What dtrun is asked to do. All but kRun start no rank.
enum class Action {
  kRun,
  kDryRun,
  kPrintConfig,
  kPrintEnv,
  kCheckBuild,
  kCompletion,
  kVersion,
  kHelpAll,
  kHelp,
};

/// What the user said, understood. cli/option_table.cc has one row for each field that can be said.
struct Options {
  Action action = Action::kRun;
  std::vector<std::string> program = {};  ///< with its arguments, untouched
  bool verbose = false;

  // Ranks and hosts.
  int ranks = 0;                 ///< 0: as many as the hosts have slots
  std::vector<Host> hosts = {};  ///< of -H; without them, FindHosts finds some
  std::string hostfile = {};
  int slots_per_host = 0;  ///< of hosts whose source says no number; 0: one
  bool oversubscribe = false;
  const LaunchEngine* engine = LaunchEngines().front();  ///< what starts the ranks
  int servers = 0;  ///< ranks that hold variables, the first ones

  // What a rank gets.
  Bind bind = Bind::kAuto;
  int threads = 0;                         ///< 0: its share of the CPUs
  std::vector<std::string> exported = {};  ///< variables that other hosts get in any case
  std::vector<std::string> env_allow = {};
  std::vector<std::string> env_deny = {};
  bool stdin_to_rank_0 = false;
  base::Environment knobs = {};  ///< DTRUN_ variables for the library, where they are said here

  // Time limits; 0: none.
  int timeout_s = 0;
  int start_timeout_s = 60;
  int host_timeout_s = 30;
  int grace_s = 10;  ///< between the notice to the ranks and their end; 0: no notice

  // How hosts are reached.
  std::vector<std::string> networks = {};  ///< names of interfaces, or CIDR
  int ssh_port = 0;                        ///< 0: as the user's ssh configuration says
  std::string ssh_identity = {};
  std::vector<std::string> mpi_args = {};  ///< words for mpirun

  // What is written.
  OutputOptions output = {};       ///< but for the ranks that are shown
  std::string shown_ranks = {};    ///< as it was said; "": all
  std::string flight_record = {};  ///< file for what the ranks did last; "": none
  std::string timeline = {};       ///< file for what the ranks did all the time; "": none
  bool progress = false;           ///< show how far the ranks are
  std::string metrics_file = {};   ///< that says so while they run; "": none
  std::string report_json = {};    ///< file for how the job ended; "": none
  std::string json = {};           ///< where --dry-run writes its plan as JSON; "": nowhere
};

/// What is read besides the command line.
struct Surroundings {
  std::function<std::string(const std::string& path)> read_file;  ///< throws UsageError
  base::GetEnv get;
};

/// Text of the file `path` that the user has named as `what`, which an error begins with, as in
/// "host file /tmp: Is a directory". Throws UsageError.
std::string ReadNamedFile(
    const std::string& what, const std::string& path, const Surroundings& surroundings);

/// The hosts of a job, each with its slots and its origin, from the first of these that names any:
/// what the user said (-H or --hostfile, on the command line or in the configuration), TF_CONFIG
/// (not one that an outer dtrun has made for its rank), the Slurm allocation, this host
/// with -np slots. None where nobody says how many ranks there are. Throws UsageError.
std::vector<Host> FindHosts(const Options& options, const Surroundings& surroundings);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_PLAN_JOB_OPTIONS_H_
