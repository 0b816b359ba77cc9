#ifndef DTRUN_LAUNCHER_SUPERVISOR_H_
#define DTRUN_LAUNCHER_SUPERVISOR_H_

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace dtrun::launcher {

/// How the supervised process ended.
struct JobEnd {
  int wait_status = 0;   ///< of waitpid
  int interruption = 0;  ///< the signal that told dtrun to end the job; 0: none
  enum class Limit { kNone, kStart, kWhole } limit = Limit::kNone;  ///< that ended the job
};

/// How long a job may take; 0: no limit.
struct TimeLimits {
  int start_s = 0;  ///< until `has_started` answers true; asked once, at that time
  std::function<bool()> has_started = {};
  int whole_s = 0;
};

/// Starts one process (mpirun) and sees to it that nothing of it is left: it dies with this one,
/// gets none of the terminal's signals, and whatever it leaves behind on this host is killed.
/// One per program: it changes the program's signal mask and makes it the reaper of orphans.
class Supervisor {
 public:
  Supervisor();

  /// Starts `argv` with exactly `environment` (NAME=value), its stdin empty, in a session of its
  /// own. Throws LaunchError kInternal.
  pid_t Start(const std::vector<std::string>& argv, const std::vector<std::string>& environment);

  /// Waits until the process and all its descendants on this host are gone. SIGINT, SIGTERM, SIGHUP
  /// or SIGQUIT meanwhile, or a time limit, ends it by SIGTERM; a second one, or 10 s, by SIGKILL.
  /// A signal that was ignored when this program started (nohup) stays ignored. `spared` is a child
  /// that stays.
  JobEnd WaitForEnd(pid_t spared, const TimeLimits& limits);

 private:
  using Clock = std::chrono::steady_clock;

  void HandleSignals(JobEnd& end);
  void HandleTime(JobEnd& end, const TimeLimits& limits);
  int MsToNextDeadline() const;
  void EndJob();
  bool Reap(JobEnd& end);
  void KillLeftOvers(pid_t spared);

  sigset_t original_mask_;
  int signals_;  // signalfd
  pid_t process_ = -1;
  std::optional<Clock::time_point> start_deadline_;
  std::optional<Clock::time_point> whole_deadline_;
  std::optional<Clock::time_point> kill_deadline_;  // once the job was told to end
};

}  // namespace dtrun::launcher

#endif
