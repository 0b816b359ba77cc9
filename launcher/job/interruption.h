#ifndef DTRUN_LAUNCHER_JOB_INTERRUPTION_H_
#define DTRUN_LAUNCHER_JOB_INTERRUPTION_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/launch_env.h"
#include "launcher/protocol/exit_record.h"

namespace dtrun::launcher {

/// The answers of the ranks to an early notice.
struct NoticeAnswers {
  int awaited = 0;   ///< running ranks that have not answered
  int takers = 0;    ///< ranks with a program that takes notices
  int starting = 0;  ///< other ranks whose program has just started: it may take notices soon
};

/// The steps by which a signal to dtrun ends a job: an early notice to the ranks, a grace time,
/// SIGTERM, SIGKILL. Pure: the caller reports each event with its time, and does the returned step.
///
///   SIGTERM -> kNotice    no rank takes it, or the grace is over -> kTerminate    10 s -> kKill
///
/// A second signal is kKill at any time. The same signal again within kSameSignal is ignored:
/// timeout(1) sends each signal twice, and so do the shell and the kernel when a terminal closes.
class Interruption {
 public:
  using Time = std::chrono::steady_clock::time_point;
  enum class Step { kNone, kNotice, kTerminate, kKill };

  static constexpr std::chrono::milliseconds kSameSignal{200};
  static constexpr std::chrono::seconds kAnswerTime{1};  ///< silent ranks take no notices
  static constexpr std::chrono::seconds kStartTime{3};   ///< a program is starting for so long
  static constexpr std::chrono::seconds kKillAfter{10};

  /// `grace` 0: no notice.
  explicit Interruption(std::chrono::seconds grace) : grace_(grace) {}

  /// SIGUSR1 asks only for the notice; any other signal ends the job.
  Step OnSignal(int signal, Time now);
  /// Ends the job without a signal and without a notice. kKill follows `patience` after kTerminate.
  Step OnEnd(Time now, std::chrono::seconds patience = kKillAfter);
  /// Call it now and then.
  Step OnTime(const NoticeAnswers& answers, Time now);

  /// The signal that ends the job; 0: none.
  int signal() const { return signal_; }
  /// Whether the grace time runs because a rank takes notices.
  bool in_grace() const { return phase_ == Phase::kGrace; }

 private:
  enum class Phase { kRunning, kAsking, kGrace, kTerminated };

  Step Terminate(Time now, std::chrono::seconds patience = kKillAfter);

  std::chrono::seconds grace_;
  Phase phase_ = Phase::kRunning;
  int signal_ = 0;
  Time signalled_ = {}, kill_by_ = {};
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

#endif  // DTRUN_LAUNCHER_JOB_INTERRUPTION_H_
