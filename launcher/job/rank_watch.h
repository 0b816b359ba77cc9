#ifndef DTRUN_LAUNCHER_JOB_RANK_WATCH_H_
#define DTRUN_LAUNCHER_JOB_RANK_WATCH_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/launch_env.h"
#include "launcher/protocol/exit_record.h"

namespace dtrun::launcher {

/// Finds jobs that would wait for ever, from the agents' reports about the ranks. There are three
/// cases:
///
/// - a rank does not call Init while others wait there,
/// - a signal has stopped a rank,
/// - the engine does not react to the end of a rank.
///
/// The limits are the program's own: stall_warning_s and timeout_s. Pure: the caller passes the
/// records and the time.
class RankWatch {
 public:
  /// How long ranks wait in Init for a rank that has already ended.
  static constexpr std::chrono::seconds kUntilSure{2};
  /// Ranks that wait for a stopped rank report it themselves, this much earlier than dtrun.
  static constexpr std::chrono::seconds kRanksFirst{2};
  /// How long an engine may take to end the other ranks, or itself, after a rank has ended.
  static constexpr std::chrono::seconds kEngineReacts{10};

  explicit RankWatch(std::vector<base::HostSlots> hosts) : RankWatch(hosts, AllOf(hosts)) {}
  /// `hosts` may name hosts of ranks that are no longer in the job. `ranks` are those of the job.
  RankWatch(std::vector<base::HostSlots> hosts, std::set<int> ranks)
      : hosts_(std::move(hosts)), ranks_(std::move(ranks)) {}

  /// Warnings about ranks that others wait for. Each warning is returned once.
  std::vector<std::string> Warnings(const std::vector<ExitRecord>& records, int64_t now_ns);

  /// Why dtrun has to end the job; nullopt: the job may go on.
  std::optional<Verdict> Judge(const std::vector<ExitRecord>& records, int64_t now_ns) const;

  /// Whether the engine has not reacted for kEngineReacts since all ranks ended or one failed.
  bool EngineHangs(const std::vector<ExitRecord>& records, int64_t now_ns) const;

  /// Starts all waits anew at `now_ns`, because this process was stopped and its reports are out of
  /// date.
  void Restart(int64_t now_ns) { restarted_ns_ = now_ns; }

 private:
  struct InitWait {
    std::vector<int> waiting;   ///< ranks that are in Init
    int64_t since_ns = 0;       ///< when the first of them came
    int64_t last_since_ns = 0;  ///< when the last of them came
    int timeout_s = 0, warning_s = 0;
    std::vector<int> absent;  ///< ranks that have not started or not called Init
    std::vector<int> ended;   ///< ranks that have ended without a failure
    int64_t ended_ns = 0;     ///< when the first of them ended
  };

  static std::set<int> AllOf(const std::vector<base::HostSlots>& hosts);
  InitWait WaitOf(const std::vector<ExitRecord>& records) const;
  static std::string Waiting(const InitWait& wait, int64_t now_ns);
  int64_t Since(int64_t ns) const { return std::max(ns, restarted_ns_); }
  std::string Name(int rank) const;
  std::string Describe(const ExitRecord* record, int64_t now_ns) const;
  std::optional<Verdict> JudgeInit(const std::vector<ExitRecord>& records, int64_t now_ns) const;
  std::optional<Verdict> JudgeStopped(const std::vector<ExitRecord>& records, int64_t now_ns) const;

  std::vector<base::HostSlots> hosts_;
  std::set<int> ranks_;
  int64_t restarted_ns_ = 0;
  bool warned_of_init_ = false;
  std::vector<int> warned_of_stopped_;
};

/// The lost workers of a job with parameter servers. The job goes on without them as long as one
/// worker is left. Pure: the caller passes the records and the time, and prints the returned lines.
class LostWorkers {
 public:
  /// Ranks [0, servers) are the servers. 0: the job has none, and every rank is needed.
  LostWorkers(int servers, std::vector<base::HostSlots> hosts)
      : servers_(servers), hosts_(std::move(hosts)) {}

  /// A worker counts as lost only this long after its failure: until then, a lost server may turn
  /// out to be the cause.
  static constexpr std::chrono::milliseconds kUntilSure{400};

  /// Whether the job can go on without the ranks of `host`: all are workers, and other workers are
  /// left.
  bool CanSpare(size_t host, const std::vector<ExitRecord>& records) const;

  /// A line for each worker newly found to be lost.
  std::vector<std::string> Update(const std::vector<ExitRecord>& records, int64_t now_ns);
  /// The same for workers found to be lost at the end of a job, if all servers ended well.
  std::vector<std::string> AtEnd(const std::vector<ExitRecord>& records);
  /// The verdict if the last worker has failed: the servers would wait for other workers.
  std::optional<Verdict> LastOne(const std::vector<ExitRecord>& records, int64_t now_ns) const;
  /// The verdict if a server has failed: the engine may not end such a job. The first rank that
  /// failed is the culprit, even if it is a worker.
  std::optional<Verdict> LostServer(const std::vector<ExitRecord>& records, int64_t now_ns) const;
  /// Whether all servers have ended well and every worker has ended well or failed. The job is then
  /// complete, even if the engine still runs.
  bool AllDone(const std::vector<ExitRecord>& records) const;
  /// `records`, with `spared` set for lost workers.
  std::vector<ExitRecord> Mark(std::vector<ExitRecord> records) const;

 private:
  bool ServersRun(const std::vector<ExitRecord>& records) const;
  bool HasOthers(const std::vector<ExitRecord>& records) const;
  std::vector<std::string> Lose(const std::vector<const ExitRecord*>& records, const char* what);
  bool IsSure(const ExitRecord& record, int64_t now_ns) const;
  static bool IsOld(const ExitRecord& record, int64_t now_ns);
  static bool IsLost(const ExitRecord& record) { return HasFailed(record) || IsGone(record); }

  int servers_;
  std::vector<base::HostSlots> hosts_;
  std::set<int> lost_;
};

// A rank that has been told of the job's end, and has saved its state, ends with exit code 75.

/// Whether all `ranks` ranks have ended with code 75 or 0, at least one of them with 75. If
/// `in_grace` (dtrun was told to end and a rank takes notices), all codes may be 0.
bool HaveSaved(const std::vector<ExitRecord>& records, int ranks, bool in_grace);

/// The verdict if one rank has saved and another rank still runs longer than `grace` afterwards.
/// Open MPI would never end such a job.
std::optional<Verdict> JudgeLate(
    const std::vector<ExitRecord>& records, const std::vector<base::HostSlots>& hosts,
    std::chrono::seconds grace, int64_t now_ns);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_JOB_RANK_WATCH_H_
