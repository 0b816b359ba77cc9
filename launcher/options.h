#ifndef DTRUN_LAUNCHER_OPTIONS_H_
#define DTRUN_LAUNCHER_OPTIONS_H_

#include <string>
#include <vector>

#include "base/launch_env.h"
#include "launcher/bind.h"
#include "launcher/host.h"
#include "launcher/launcher_kind.h"
#include "launcher/output_options.h"

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
  kHelp,
};

/// What the user said, understood. option_table.cc has one row for each field that can be said.
struct Options {
  Action action = Action::kRun;
  std::vector<std::string> program = {};  ///< with its arguments, untouched
  bool verbose = false;

  // Ranks and hosts.
  int ranks = 0;                 ///< 0: as many as the hosts have slots
  std::vector<Host> hosts = {};  ///< of -H; without them, host_sources.h finds some
  std::string hostfile = {};
  int slots_per_host = 0;  ///< of hosts whose source says no number; 0: one
  bool oversubscribe = false;
  Launcher launcher = Launcher::kMpirun;
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

}  // namespace dtrun::launcher

#endif
