#ifndef DTRUN_LAUNCHER_JOB_RANK_WATCH_H_
#define DTRUN_LAUNCHER_JOB_RANK_WATCH_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/launch_env.h"
#include "launcher/protocol/exit_record.h"

namespace dtrun::launcher {

/// Finds jobs that would wait for ever, by what the agents see of the ranks: a rank that never
/// comes to Init while others wait there, a rank that a signal has stopped, an engine that does not
/// react to the end of its ranks. The limits are the program's own: stall_warning_s and timeout_s.
/// Pure: it is told what is known and when.
class RankWatch {
 public:
  /// A rank that has ended was not going to come: the others need not wait for longer.
  static constexpr std::chrono::seconds kUntilSure{2};
  /// Ranks that wait for a stopped one report that themselves, a little earlier.
  static constexpr std::chrono::seconds kRanksFirst{2};
  /// How long an engine may take to end the other ranks, or itself, after a rank has ended.
  static constexpr std::chrono::seconds kEngineReacts{10};

  explicit RankWatch(std::vector<base::HostSlots> hosts) : hosts_(std::move(hosts)) {}

  /// Lines about ranks that are waited for, each said once.
  std::vector<std::string> Warnings(const std::vector<ExitRecord>& records, int64_t now_ns);

  /// Why dtrun has to end the job; nothing: it may go on.
  std::optional<Verdict> Judge(const std::vector<ExitRecord>& records, int64_t now_ns) const;

  /// Whether the engine has not reacted to the end of ranks: all have ended, or one has failed,
  /// kEngineReacts ago.
  bool EngineHangs(const std::vector<ExitRecord>& records, int64_t now_ns) const;

  /// This process did not run for a while: until `now_ns`, nothing that is known is up to date.
  void Restart(int64_t now_ns) { restarted_ns_ = now_ns; }

 private:
  struct InitWait {
    std::vector<int> waiting;  ///< ranks that are in Init
    int64_t since_ns = 0;      ///< the first of them
    int timeout_s = 0, warning_s = 0;
    std::vector<int> absent;  ///< ranks that run, or have not started, and have not come
    std::vector<int> ended;   ///< ranks that have ended
    int64_t ended_ns = 0;     ///< the first of them
  };

  InitWait WaitOf(const std::vector<ExitRecord>& records) const;
  static std::string Waiting(const InitWait& wait, int64_t now_ns);
  int64_t Since(int64_t ns) const { return std::max(ns, restarted_ns_); }
  std::string Name(int rank) const;
  std::string Describe(const ExitRecord* record, int64_t now_ns) const;
  std::optional<Verdict> JudgeInit(const std::vector<ExitRecord>& records, int64_t now_ns) const;
  std::optional<Verdict> JudgeStopped(const std::vector<ExitRecord>& records, int64_t now_ns) const;

  std::vector<base::HostSlots> hosts_;
  int64_t restarted_ns_ = 0;
  bool warned_of_init_ = false;
  std::vector<int> warned_of_stopped_;
};

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_JOB_RANK_WATCH_H_
