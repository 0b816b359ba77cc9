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

/// The file system of a folder.
struct FreeSpace {
  std::string folder;
  int64_t free_bytes = 0;  ///< for this user

  bool operator==(const FreeSpace&) const = default;
};

/// What was true on a rank's host when its program ended badly: the proofs of the
/// hints in report/failure_report.h.
struct EndFacts {
  int64_t oom_kills = 0;           ///< by the kernel in its memory cgroup, since it started
  std::string memory_cgroup = {};  ///< "": not known
  int64_t memory_limit = 0;        ///< of that cgroup, in bytes; 0: none
  int64_t address_limit = 0;       ///< RLIMIT_AS in bytes; 0: none
  std::vector<FreeSpace> space = {};

  bool operator==(const EndFacts&) const = default;
};

/// As it goes from an agent to dtrun. What is missing or of another kind counts as not known.
nlohmann::json JsonOf(const EndFacts& facts);
EndFacts EndFactsOf(const nlohmann::json& json);

/// The memory cgroup of a process: how often the kernel has killed there for lack of memory. Looked
/// at when a program starts and again when it has ended.
class MemoryCgroup {
 public:
  /// Of `process`; of none where the system does not tell.
  static MemoryCgroup Of(pid_t process);

  /// Adds what has happened since `Of`.
  void AddTo(EndFacts& facts) const;

 private:
  int64_t OomKills() const;

  std::string name_, folder_;
  bool unified_ = false;  // version 2
  int64_t oom_kills_before_ = 0;
};

/// The path of the memory cgroup in the text of /proc/PID/cgroup; `unified` says whether it is one
/// of version 2. "" if there is none.
std::string MemoryCgroupIn(const std::string& proc_cgroup, bool* unified);

/// The soft limit of "Max address space" in the text of /proc/PID/limits; 0: unlimited or not
/// there.
int64_t AddressLimitIn(const std::string& proc_limits);

/// The file systems of these folders, each once, under the first folder that lies on it.
std::vector<FreeSpace> FreeSpaceOf(const std::vector<std::string>& folders);

enum class RankEnd {
  kRunning,     ///< its wrapper has not seen it end
  kExited,      ///< `value` is the exit code
  kSignaled,    ///< `value` is the signal
  kNotStarted,  ///< `value` is the errno of exec
  kHostLost,    ///< its host is not heard of any more: dtrun's own finding
};

/// What the agent of its host sees of a rank that runs. Times are on the monotonic clock.
struct RankState {
  bool joined = false;     ///< its program has been through dtrun's Init
  int64_t init_ns = 0;     ///< since when it has been in Init; 0: it is not
  int64_t stopped_ns = 0;  ///< since when a signal or a debugger has stopped it; 0: it runs
  int timeout_s = 0;       ///< how long the program waits for other ranks; 0: not known
  int warning_s = 0;       ///< after how long it reports that it waits

  bool operator==(const RankState&) const = default;
};

/// How one rank ended, as the agent of its host has told.
struct ExitRecord {
  int rank = 0;
  RankEnd end = RankEnd::kRunning;
  int value = 0;
  int64_t time_ns = 0;       ///< when that was heard, on the monotonic clock
  bool in_order = false;     ///< it had called dtrun's Shutdown
  pid_t pid = 0;             ///< of its program; 0: not known
  std::string gave_up = {};  ///< the error with which it gave up waiting for others; "": it did not
  int64_t start_ns = 0;      ///< when its program's start was heard of; 0: it was not
  EndFacts facts = {};       ///< of one that ended badly
  bool orphaned = false;     ///< what had started its wrapper was gone at that time
  bool spared = false;       ///< it has failed, and the job went on without it (job/lost_workers.h)
  RankState state = {};      ///< the last one that was seen
  bool alone = false;        ///< the signal that ended it was sent to it alone, not by the engine

  bool operator==(const ExitRecord&) const = default;
};

/// The file in the job's folder on its host that dtrun's Shutdown makes for this rank.
std::string ShutdownNote(const std::string& folder, int rank);

/// What dtrun ends with when its job failed, and the line that says why: none where a rank that
/// left in good order has chosen its exit code, and has said why itself.
struct Verdict {
  int exit_code;
  std::string message;
  int culprit = -1;      ///< the rank; -1: none is to blame
  bool of_rank = false;  ///< the code is one that a rank has chosen, not dtrun
};

/// It ended otherwise than a rank ends that has done its work, or saved.
bool HasFailed(const ExitRecord& record);
/// A signal, or a debugger, had stopped it when it was ended.
bool WasStopped(const ExitRecord& record);
/// Its wrapper was killed, and its program with it: nobody knows how that ended.
bool IsGone(const ExitRecord& record);
/// It was ended as an engine ends all ranks when the first one fails.
bool EndedForAnother(const ExitRecord& record);
/// Which of these, of ranks that have failed or are gone, has brought the others about. At least
/// one.
ExitRecord FirstCause(const std::vector<ExitRecord>& failed);
/// "rank 1 on h1 was killed by SIGKILL", of one that has failed.
std::string EndOf(const ExitRecord& record, const std::vector<base::HostSlots>& hosts);
/// What a job ends with that failed because of this rank.
Verdict BlameFor(const ExitRecord& record, const std::vector<base::HostSlots>& hosts);

/// What the exit code of the program that starts the ranks means, where no rank's record says more.
struct EngineEnd {
  Verdict none_started;     ///< no rank has a record
  std::string left;         ///< after "rank 1 on h1 exited with code 0": how that ended the job
  std::string lost_daemon;  ///< the code says that this, on another host, was lost; "": it does not
  Verdict unexplained;      ///< all other cases
  int first_lost = -1;      ///< the rank whose process the engine saw killed first; -1: not known
  /// The daemon that the engine lost first: its number among the other hosts, from 1; 0: not known.
  int daemon = 0;
};

/// The host of such a daemon; `here`: the hosts that are this machine. -1: there is none.
int HostOfDaemon(int daemon, const std::vector<bool>& here);

/// Who failed first. `engine_code`, not 0, is the exit code of the program that started the ranks,
/// and `engine` what it means; `hosts` the placement; ranks that never started have no record.
/// Ranks that were ended because of the first one are not counted. `daemon_host`: HostOfDaemon.
Verdict JudgeFailure(
    const std::vector<ExitRecord>& records, int engine_code,
    const std::vector<base::HostSlots>& hosts, const EngineEnd& engine, int daemon_host = -1);

/// What dtrun_rank ends with, as mpirun would, where its program has called dtrun's Init and ended
/// with code 0 without Shutdown.
inline constexpr int kLeftCode = 1;

/// "SIGSEGV"
std::string SignalName(int signal);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_PROTOCOL_EXIT_RECORD_H_
