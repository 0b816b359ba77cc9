#ifndef DTRUN_LAUNCHER_SUPERVISOR_H_
#define DTRUN_LAUNCHER_SUPERVISOR_H_

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "launcher/poller.h"

namespace dtrun::launcher {

/// Starts one process (mpirun) and sees to it that nothing of it is left: it dies with this one,
/// gets none of the terminal's signals, and whatever it leaves behind on this host is killed.
/// One per program: it changes the program's signal mask and makes it the reaper of orphans.
///
/// SIGINT, SIGTERM, SIGHUP or SIGQUIT ends the process by SIGTERM; a second one, or 10 s, by
/// SIGKILL. A signal that was ignored when this program started (nohup) stays ignored.
class Supervisor {
 public:
  /// Signals are handled while `poller` waits.
  explicit Supervisor(Poller& poller);
  ~Supervisor();

  /// Starts `argv` with exactly `environment` (NAME=value), its stdin empty, in a session of its
  /// own. Throws LaunchError kInternal.
  pid_t Start(const std::vector<std::string>& argv, const std::vector<std::string>& environment);

  /// The process has ended; with this status of waitpid.
  bool ended() const { return ended_; }
  int wait_status() const { return wait_status_; }
  /// The signal that told dtrun to end the job; 0: none.
  int interruption() const { return interruption_; }

  /// Ends the process as the signal would; a second call kills it.
  void Interrupt(int signal);
  /// Ends the process without a signal to blame.
  void End();
  /// Called now and then: kills a process that has not ended in time.
  void Tick();

  /// Once the process has ended: kills its descendants on this host, but not the children `spared`.
  void KillLeftOvers(const std::vector<pid_t>& spared);

 private:
  void HandleSignals();
  void Reap();
  void KillProcess();

  Poller& poller_;
  sigset_t original_mask_;
  int signals_;  // signalfd
  pid_t process_ = -1;
  bool ended_ = false;
  int wait_status_ = 0;
  int interruption_ = 0;
  std::chrono::steady_clock::time_point kill_at_ = std::chrono::steady_clock::time_point::max();
};

}  // namespace dtrun::launcher

#endif
