#ifndef DTRUN_LAUNCHER_JOB_INTERRUPTION_H_
#define DTRUN_LAUNCHER_JOB_INTERRUPTION_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/launch_env.h"
#include "launcher/protocol/exit_record.h"

namespace dtrun::launcher {

/// What the ranks have answered to an early notice.
struct NoticeAnswers {
  int awaited = 0;  ///< ranks that run and have not answered
  int takers = 0;   ///< ranks whose program takes notices
};

/// How a job is told to end from outside: an early notice to the ranks, time to end by themselves,
/// SIGTERM, SIGKILL. Pure: it hears what happens and when, and says what is to be done then.
///
///   SIGTERM -> kNotice    no rank takes it, or the grace is over -> kTerminate    10 s -> kKill
///
/// A second signal is kKill at any time. The same one within a moment is still the first:
/// timeout(1) sends each twice, and at the end of a terminal both the shell and the kernel do.
class Interruption {
 public:
  using Time = std::chrono::steady_clock::time_point;
  enum class Step { kNone, kNotice, kTerminate, kKill };

  static constexpr std::chrono::milliseconds kSameSignal{200};
  static constexpr std::chrono::seconds kAnswerTime{1};  ///< a rank that is silent takes no notice
  static constexpr std::chrono::seconds kKillAfter{10};

  /// `grace` 0: no notice.
  explicit Interruption(std::chrono::seconds grace) : grace_(grace) {}

  /// SIGUSR1 asks for the notice alone; any other signal is to end the job.
  Step OnSignal(int signal, Time now);
  /// The job is to end without a signal or a notice, by kKill `patience` after kTerminate.
  Step OnEnd(Time now, std::chrono::seconds patience = kKillAfter);
  /// To be asked now and then.
  Step OnTime(const NoticeAnswers& answers, Time now);

  /// The signal that is to end the job; 0: none.
  int signal() const { return signal_; }
  /// Some rank takes notices, so the grace runs.
  bool in_grace() const { return phase_ == Phase::kGrace; }

 private:
  enum class Phase { kRunning, kAsking, kGrace, kTerminated };

  Step Terminate(Time now, std::chrono::seconds patience = kKillAfter);

  std::chrono::seconds grace_;
  Phase phase_ = Phase::kRunning;
  int signal_ = 0;
  Time signalled_ = {}, kill_by_ = {};
};

// A rank that was told that its job is going to be ended, and has saved what the job needs to go on
// later, says so by exit code 75.

/// Whether all of `ranks` ranks ended by themselves and had saved: with 75 or 0, one at least with
/// 75. Ranks that take a notice in time (`in_grace`: dtrun was told to end, and gave them time) may
/// all say 0.
bool HaveSaved(const std::vector<ExitRecord>& records, int ranks, bool in_grace);

/// What to end a job with in which one rank has saved and another goes on for longer than `grace`:
/// Open MPI would never end it.
std::optional<Verdict> JudgeLate(
    const std::vector<ExitRecord>& records, const std::vector<base::HostSlots>& hosts,
    std::chrono::seconds grace, int64_t now_ns);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_JOB_INTERRUPTION_H_
