#ifndef DTRUN_BASE_LAUNCH_ENV_H_
#define DTRUN_BASE_LAUNCH_ENV_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtrun::base {

/// `count` consecutive ranks that run on host `name`.
struct HostSlots {
  std::string name;
  int slots = 0;

  bool operator==(const HostSlots&) const = default;
};

/// What the launcher tells a rank, through the environment: the whole contract between the two.
/// Written by dtrun (the same for all ranks) and completed by the rank wrapper (`threads`, once the
/// CPUs of its host are known, unless the user has said it); read by the runtime, but for `bind`
/// and `verbose`, which are for the wrapper. Ranks are numbered through the hosts in order: host 0
/// has ranks [0, slots), and so on. The host of a rank comes from here, never from a host name or
/// boot id, so that several hosts may share one machine. The rank itself is said here only where
/// dtrun starts the ranks without MPI; else it is Open MPI's to say (OMPI_COMM_WORLD_RANK).
struct LaunchEnv {
  std::string job = {};               ///< random, unique to this launch
  std::string version = {};           ///< of the launcher
  std::vector<HostSlots> hosts = {};  ///< with the slots in use: they add up to the number of ranks
  int terminal_columns = 0;           ///< width of the user's terminal; 0: stdout is none
  int threads = 0;                    ///< compute threads of this rank; 0: not said
  std::string bind = {};              ///< what to pin ranks to, as --bind says it; "": not said
  bool verbose = false;               ///< report what each rank got
  bool timeline = false;              ///< every rank writes its timeline into its flight folder
  /// Ranks [0, servers) hold variables, and the job goes on without a rank that does not
  /// (dtrun --ps). Such a job has no collectives between its ranks, and no MPI. 0: one like others.
  int servers = 0;
  int rank = -1;  ///< of this process, where there is no MPI; -1: ask MPI
  /// File of this host with 32 random bytes that the ranks of a job with servers, and nobody else,
  /// can read; "": none. Written by the agent, named by the wrapper.
  std::string secret_file = {};

  /// File that Shutdown makes, so that the launcher knows a rank which left in good order from one
  /// that just ended; "": none. Its folder is there on the launcher's own host alone.
  std::string shutdown_note = {};
  /// Folder in which each rank makes the file of its flight record (FlightFile); "": none. It too
  /// is there on the launcher's own host alone.
  std::string flight_folder = {};

  bool operator==(const LaunchEnv&) const = default;
};

using Environment = std::vector<std::pair<std::string, std::string>>;
/// What `getenv` answers, as a value: nothing when the variable is not set.
using GetEnv = std::function<std::optional<std::string>(const std::string& name)>;

/// The variables (DTRUN_JOB, DTRUN_HOSTS, ...) that say `launch`.
Environment WriteLaunchEnv(const LaunchEnv& launch);

/// The names of all variables that WriteLaunchEnv may write.
const std::vector<std::string>& LaunchVariables();

/// The launch that the environment describes; nothing when DTRUN_JOB is not set, so nobody launched
/// this process with dtrun. Throws Error kInvalidArgument naming the variable, what it holds and
/// what was expected.
std::optional<LaunchEnv> ReadLaunchEnv(const GetEnv& get);

/// In a job with servers: the file beside `shutdown_note` that says that rank `rank`, wherever it
/// was, has ended. It is there on the first host alone, and for ranks that are no servers.
std::string EndedNote(const std::string& shutdown_note, int rank);

/// The file beside `shutdown_note` that exists while this rank is in Init. It holds three numbers:
/// the process, and the options timeout_s and stall_warning_s. When the rank has joined the job,
/// the file becomes JoinedNote.
std::string InitNote(const std::string& shutdown_note);
std::string JoinedNote(const std::string& shutdown_note);

/// Index of the host that rank `rank` runs on. `rank` is in range.
int HostOfRank(const std::vector<HostSlots>& hosts, int rank);

/// Sum of the slots.
int RankCount(const std::vector<HostSlots>& hosts);

/// The rank that a process of this host was started as (DTRUN_RANK, else RANK); nothing when it was
/// not, or cannot be looked at.
std::optional<int> RankOfProcess(int process);

/// The process's own environment.
std::optional<std::string> ProcessEnv(const std::string& name);

}  // namespace dtrun::base

#endif
