#ifndef DTRUN_LAUNCHER_PROTOCOL_EXIT_RECORD_H_
#define DTRUN_LAUNCHER_PROTOCOL_EXIT_RECORD_H_

#include <sys/types.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/launch_env.h"

namespace dtrun::launcher {

/// The free space of the file system that holds a folder.
struct FreeSpace {
  std::string folder;
  int64_t free_bytes = 0;  ///< free for this user

  bool operator==(const FreeSpace&) const = default;
};

/// Facts about a rank's host at the time when the rank's program failed. They prove the hints in
/// report/failure_report.h.
struct EndFacts {
  int64_t oom_kills = 0;           ///< in the memory cgroup, since the program started
  std::string memory_cgroup = {};  ///< "": not known
  int64_t memory_limit = 0;        ///< of the cgroup, in bytes; 0: none
  int64_t address_limit = 0;       ///< RLIMIT_AS in bytes; 0: none
  std::vector<FreeSpace> space = {};

  bool operator==(const EndFacts&) const = default;
};

/// The JSON form that an agent sends to dtrun. A missing or malformed value counts as not known.
nlohmann::json JsonOf(const EndFacts& facts);
EndFacts EndFactsOf(const nlohmann::json& json);

/// The memory cgroup of a process. Counts the processes that the kernel has killed there for lack
/// of memory, between the start and the end of a program.
class MemoryCgroup {
 public:
  /// The cgroup of `process`; none if the system does not tell.
  static MemoryCgroup Of(pid_t process);

  /// Adds the name, the limit and the kills since `Of`.
  void AddTo(EndFacts& facts) const;

 private:
  int64_t OomKills() const;

  std::string name_, folder_;
  bool unified_ = false;  // cgroup version 2
  int64_t oom_kills_before_ = 0;
};

/// The path of the memory cgroup in the text of /proc/PID/cgroup; "": there is none. Sets `unified`
/// if the cgroup is of version 2.
std::string MemoryCgroupIn(const std::string& proc_cgroup, bool* unified);

/// The soft limit of "Max address space" in the text of /proc/PID/limits; 0: unlimited or missing.
int64_t AddressLimitIn(const std::string& proc_limits);

/// The file systems of these folders. Each is listed once, with its first folder.
std::vector<FreeSpace> FreeSpaceOf(const std::vector<std::string>& folders);

enum class RankEnd {
  kRunning,     ///< the wrapper has not reported an end
  kExited,      ///< `value` is the exit code
  kSignaled,    ///< `value` is the signal
  kNotStarted,  ///< `value` is the errno of exec
  kHostLost,    ///< dtrun has lost the rank's host
};

/// The state of a running rank, seen by the agent of its host. Times are on the monotonic clock.
struct RankState {
  bool joined = false;     ///< the program has finished dtrun's Init
  int epoch = 0;           ///< if it has: the epoch that it has joined (EpochFile)
  int64_t init_ns = 0;     ///< since when the program has been in Init; 0: it is not
  int64_t stopped_ns = 0;  ///< since when a signal or a debugger has stopped it; 0: it runs
  int timeout_s = 0;       ///< how long the program waits for other ranks; 0: not known
  int warning_s = 0;       ///< after how long the program warns that it waits

  bool operator==(const RankState&) const = default;
};

/// How a rank ended, as reported by the agent of its host.
struct ExitRecord {
  int rank = 0;
  RankEnd end = RankEnd::kRunning;
  int value = 0;
  int64_t time_ns = 0;       ///< when the rank ended, on dtrun's monotonic clock; 0: it runs
  bool in_order = false;     ///< it had called dtrun's Shutdown before
  pid_t pid = 0;             ///< of the program; 0: not known
  std::string gave_up = {};  ///< the error with which it gave up waiting; "": it did not
  int64_t start_ns = 0;      ///< when dtrun heard that the program had started; 0: never
  EndFacts facts = {};       ///< set if the rank failed
  bool orphaned = false;     ///< the process that had started the wrapper was gone
  bool spared = false;       ///< it failed, and the job went on (job/rank_watch.h)
  RankState state = {};      ///< the last reported state
  bool alone = false;        ///< the signal that ended it was not sent to its process group
  int64_t step = 0;          ///< that it had completed at its end; 0: none, or not known
  /// The step of the state that its host then kept (base/elastic_files.h); -1: the host kept none.
  int64_t kept_step = -1;

  bool operator==(const ExitRecord&) const = default;
};

/// The file that dtrun's Shutdown creates for this rank in the job's folder on its host.
std::string ShutdownNote(const std::string& folder, int rank);

/// The file in job folder `folder` in which agent number `agent` tells the ranks of its host when
/// ranks were lost.
std::string EpochPath(const std::string& folder, int agent);

/// The exit code of a failed job and the line that explains it. The line is empty if a rank has
/// chosen its exit code after Shutdown: such a rank has reported its error itself.
struct Verdict {
  int exit_code;
  std::string message;
  int culprit = -1;      ///< the rank that caused the failure; -1: none
  bool of_rank = false;  ///< a rank has chosen the code, not dtrun
};

/// Whether the rank failed: it neither finished its work nor saved for pre-emption.
bool HasFailed(const ExitRecord& record);
/// Whether a signal or a debugger had stopped the rank when it was ended.
bool WasStopped(const ExitRecord& record);
/// Whether the wrapper was killed together with its program: the program's end is unknown.
bool IsGone(const ExitRecord& record);
/// Whether the rank ended as an engine ends all ranks after the first failure.
bool EndedForAnother(const ExitRecord& record);
/// The record that caused the other failures. `failed` holds at least one record, all of failed or
/// gone ranks.
ExitRecord FirstCause(const std::vector<ExitRecord>& failed);
/// "rank 1 on h1 was killed by SIGKILL". For a failed rank.
std::string EndOf(const ExitRecord& record, const std::vector<base::HostSlots>& hosts);
/// The verdict if this rank caused the failure of the job.
Verdict BlameFor(const ExitRecord& record, const std::vector<base::HostSlots>& hosts);

/// The meaning of the engine's exit code if no record of a rank explains the failure.
struct EngineEnd {
  Verdict none_started;  ///< if no rank has a record
  /// The text after "rank 1 on h1 exited with code 0"; "": that is not the reason.
  std::string left = "";
  std::string lost_daemon = "";  ///< name of the daemon that the code reports as lost; "": none
  Verdict unexplained;           ///< in all other cases
  int first_lost = -1;           ///< the rank that the engine saw killed first; -1: not known
  /// The daemon that the engine lost first, as its number among the other hosts, from 1; 0: not
  /// known.
  int daemon = 0;
};

/// The host of such a daemon; -1: none. `here` says for each host whether it is this machine.
int HostOfDaemon(int daemon, const std::vector<bool>& here);

/// Finds the rank that failed first. `engine_code` is the engine's exit code, not 0; `engine` is
/// its meaning. Ranks that never started have no record. Ranks that were ended because of the first
/// failure do not count. `daemon_host` is the result of HostOfDaemon.
Verdict JudgeFailure(
    const std::vector<ExitRecord>& records, int engine_code,
    const std::vector<base::HostSlots>& hosts, const EngineEnd& engine, int daemon_host = -1);

/// The exit code of dtrun_rank if its program called dtrun's Init and exited with code 0 without
/// Shutdown. mpirun uses the same code.
inline constexpr int kLeftCode = 1;

/// "SIGSEGV"
std::string SignalName(int signal);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_PROTOCOL_EXIT_RECORD_H_
