#ifndef DTRUN_BASE_LAUNCH_ENV_H_
#define DTRUN_BASE_LAUNCH_ENV_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtrun::base {

/// `slots` consecutive ranks that run on host `name`.
struct HostSlots {
  std::string name;
  int slots = 0;

  bool operator==(const HostSlots&) const = default;
};

/// Data that a rank damages on purpose (--inject): one bit of the gradients that it gets from the
/// reduction of bucket `bucket` in step `step`.
struct Corruption {
  int rank = 0;  ///< launch number
  uint64_t step = 1;
  int bucket = 0;

  bool operator==(const Corruption&) const = default;
};

/// The message of the launcher to a rank, in environment variables: the whole contract between the
/// two. dtrun writes it, the same for all ranks. The rank wrapper adds `threads` when it knows the
/// CPUs of its host, unless the user has set it. The runtime reads it, except for `bind` and
/// `verbose`, which are for the wrapper.
///
/// Ranks are numbered through the hosts in order: host 0 has ranks [0, slots), and so on. A rank
/// takes its host from here, never from a host name or boot id, so that several hosts may share one
/// machine. `rank` is set only if dtrun starts the ranks without MPI. Otherwise Open MPI gives the
/// rank (OMPI_COMM_WORLD_RANK).
struct LaunchEnv {
  std::string job = {};               ///< random, unique to this launch
  std::string version = {};           ///< of the launcher
  std::vector<HostSlots> hosts = {};  ///< with the slots in use; their sum is the number of ranks
  int terminal_columns = 0;           ///< width of the user's terminal; 0: stdout is not a terminal
  int threads = 0;                    ///< compute threads of this rank; 0: not set
  std::string bind = {};  ///< the unit that ranks are pinned to, as for --bind; "": not set
  bool verbose = false;   ///< report the CPUs of each rank
  bool timeline = false;  ///< every rank writes its timeline into its flight folder
  std::vector<Corruption> corruptions = {};  ///< of all ranks
  /// Ranks [0, servers) hold variables (dtrun --ps). The job continues when it loses one of the
  /// other ranks. Such a job has no collectives between its ranks, and no MPI. 0: a job without
  /// servers.
  int servers = 0;
  bool evaluator = false;  ///< with servers: the last rank is no worker, but evaluates
  /// The launch number of this process, if there is no MPI; -1: ask MPI. Its rank is RankOf.
  int rank = -1;
  /// The launch numbers of the ranks, by rank: a job that has lost or gained ranks numbers its
  /// ranks anew. Empty: the launch number is the rank.
  std::vector<int> members = {};
  /// The job has too few ranks for now, and no process is a rank.
  bool paused = false;
  /// The number of the agent to which the wrapper of this process connects; -1: the index of the
  /// rank's host in `hosts`.
  int agent = -1;
  /// A rank that is lost is started again (dtrun --restarts), and the other ranks wait for it.
  bool restarts = false;
  /// After the loss of a rank, the engine ends all ranks and starts them again (dtrun --restarts
  /// with mpirun). Excludes `restarts`.
  bool starts_again = false;
  /// With `starts_again`: the epoch of the job for which this process was started. 0: the first.
  int epoch = 0;
  /// With `starts_again`: the numbers of the agents, by the index of the host in `hosts`. Empty:
  /// the index is the number.
  std::vector<int> agents = {};
  /// With `starts_again`: the file of this host, in memory, that holds the state of the training
  /// (elastic_files.h). Its folder belongs to the agent. The wrapper names the file.
  std::string kept_state = {};
  /// With `restarts` or `starts_again`: the number of ranks that the job had at its start. 0: that
  /// of `hosts`.
  int launch_size = 0;
  /// With `restarts`: the file of this host that tells when ranks were lost (elastic_files.h). The
  /// agent makes the file, and the wrapper names it.
  std::string epoch_file = {};
  /// File on this host with 32 random bytes, for a job of several hosts without MPI. Only the ranks
  /// of the job can read it. "": none. The agent writes the file, and the wrapper names it.
  std::string secret_file = {};

  /// File that Shutdown makes. By this file, the launcher tells a rank that left in good order from
  /// a rank that just ended. "": none. Its folder exists only on the launcher's own host.
  std::string shutdown_note = {};
  /// Folder in which each rank makes its flight record (FlightFile); "": none. The folder exists
  /// only on the launcher's own host.
  std::string flight_folder = {};

  bool operator==(const LaunchEnv&) const = default;
};

using Environment = std::vector<std::pair<std::string, std::string>>;
/// Returns the value of an environment variable; nullopt if the variable is not set.
using GetEnv = std::function<std::optional<std::string>(const std::string& name)>;

/// The variables (DTRUN_JOB, DTRUN_HOSTS, ...) that hold `launch`.
Environment WriteLaunchEnv(const LaunchEnv& launch);

/// The variables of `launch` that change when the job loses or gains ranks: the hosts, the members
/// and whether it is paused.
Environment WriteMembers(const LaunchEnv& launch);
/// The variables of one process that is started for such a job.
Environment WritePlace(int rank, int agent);
/// The variables of all processes that are started for epoch `epoch` of a job that starts again.
Environment WriteStart(int epoch, const std::vector<int>& agents);

/// The rank of the process with launch number `number`; -1: the process is no rank of the job at
/// present.
int RankOf(const LaunchEnv& launch, int number);

/// The names of all variables that WriteLaunchEnv may write.
const std::vector<std::string>& LaunchVariables();

/// The launch that the environment describes; nullopt if DTRUN_JOB is not set, because dtrun has
/// not launched this process. Throws Error kInvalidArgument with the variable, its value and the
/// expected value.
std::optional<LaunchEnv> ReadLaunchEnv(const GetEnv& get);

/// In a job with servers: the file beside `shutdown_note` that says that rank `rank` has ended, on
/// any host. The file exists only on the first host, and only for ranks that are no servers.
std::string EndedNote(const std::string& shutdown_note, int rank);

/// The file beside `shutdown_note` that exists while this rank is in Init. It holds four numbers:
/// the process id, the options timeout_s and stall_warning_s, and the epoch that the rank joins
/// (elastic_files.h). When the rank has joined the job, the file is renamed to JoinedNote.
std::string InitNote(const std::string& shutdown_note);
std::string JoinedNote(const std::string& shutdown_note);

/// The index of the host of rank `rank`. `rank` is in range.
int HostOfRank(const std::vector<HostSlots>& hosts, int rank);

/// The sum of the slots.
int RankCount(const std::vector<HostSlots>& hosts);

/// The rank as which process `process` of this host was started (DTRUN_RANK, otherwise RANK).
/// Returns nullopt if the process has no rank, or its environment cannot be read.
std::optional<int> RankOfProcess(int process);

/// The process's own environment.
std::optional<std::string> ProcessEnv(const std::string& name);

}  // namespace dtrun::base

#endif
