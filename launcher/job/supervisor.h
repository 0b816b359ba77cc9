#ifndef DTRUN_LAUNCHER_JOB_SUPERVISOR_H_
#define DTRUN_LAUNCHER_JOB_SUPERVISOR_H_

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/interruption.h"
#include "launcher/support/host_system.h"
#include "launcher/support/poller.h"

namespace dtrun::launcher {

/// Starts one process (mpirun) and leaves nothing of it behind. The process ends when this program
/// dies and gets no signals from the terminal. The supervisor kills all processes that mpirun
/// leaves on this host. One Supervisor per program: the constructor changes the signal mask and
/// makes the program the reaper of orphans.
///
/// SIGINT, SIGTERM, SIGHUP or SIGQUIT ends the process in the steps of interruption.h. SIGUSR1 asks
/// only for the notice, SIGTSTP for a pause. If SIGHUP or SIGTSTP was ignored when this program
/// started (nohup), it stays ignored. SIGINT is handled even then, because a SIGINT sent to a
/// background job is meant for it.
class Supervisor {
 public:
  struct Requests {
    std::function<void()> notice;  ///< give the ranks an early notice
    /// Send SIGTERM to the ranks. False: no rank runs, so the process can end at once.
    std::function<bool()> terminate;
    std::function<void()> pause;   ///< stop the ranks, then this process
    std::function<void()> resume;  ///< after SIGCONT
  };

  /// Handles signals while `poller` waits.
  Supervisor(Poller& poller, std::chrono::seconds grace, Requests requests);
  ~Supervisor();

  /// Starts `argv` with exactly `environment` (NAME=value) and an empty stdin, in a new session.
  /// `messages` becomes its stderr; -1: /dev/null. After the end of the process, another one can be
  /// started. Throws LaunchError kInternal.
  pid_t Start(
      const std::vector<std::string>& argv, const std::vector<std::string>& environment,
      int messages);

  /// Whether the process has ended, and its status from waitpid.
  bool ended() const { return ended_; }
  int wait_status() const { return wait_status_; }
  /// The signal that told dtrun to end the job; 0: none.
  int interruption() const { return interruption_.signal(); }
  /// Whether the grace time runs, because ranks take notices.
  bool in_grace() const { return interruption_.in_grace(); }

  /// Acts as if `signal` had come.
  void Interrupt(int signal);
  /// Ends the ranks, then the process, although no signal has come. SIGKILL follows `patience`
  /// later.
  void End(std::chrono::seconds patience = Interruption::kKillAfter);
  /// Whether the ranks were told to terminate, and the process was not told yet.
  bool ranks_terminate() const { return ranks_terminate_; }
  /// Tells the process to end, after its ranks have ended.
  void EndProcess();
  /// Kills the process, so that dtrun can start its ranks again.
  void KillProcess();
  /// Continues the process if a signal has stopped it; true if it was stopped.
  bool ContinueIfStopped();
  pid_t process() const { return process_; }
  /// Ends or kills a process that is late. Call it now and then.
  void Tick(const NoticeAnswers& answers);

  /// Kills the ended process's descendants on this host, except the children in `spared`.
  void KillLeftOvers(const std::vector<pid_t>& spared);

 private:
  void HandleSignals();
  void Do(Interruption::Step step);
  void Reap();

  Poller& poller_;
  Interruption interruption_;
  Requests requests_;
  sigset_t original_mask_;
  int signals_;  // signalfd
  pid_t process_ = -1;
  bool ended_ = false, ranks_terminate_ = false;
  int wait_status_ = 0;
  StoppedHelper stopped_process_;
};

/// The stderr of a process.
class Complaints {
 public:
  /// Owns `file`, the read end of the pipe.
  Complaints(Poller& poller, int file);
  ~Complaints();
  Complaints(const Complaints&) = delete;
  Complaints& operator=(const Complaints&) = delete;

  /// The last line, which says why the process ended: the lines before it are banners. "": no
  /// output.
  std::string LastLine() const;
  /// Reads to the end, or until no bytes have come for a second.
  void Drain();

 private:
  bool Read();

  Poller& poller_;
  int file_;
  std::string text_;
};

/// An agent's process, or the ssh process that leads to it.
struct AgentProcess {
  pid_t process;
  int channel;     ///< a socket: the process's stdin and stdout
  int complaints;  ///< a pipe: the process's stderr
};

/// Starts the process in a new session. Throws LaunchError kInternal.
AgentProcess StartAgentProcess(const std::vector<std::string>& words);

/// Waits for the end of a process from StartAgentProcess, and returns its status from waitpid, also
/// if a Supervisor has reaped it. nullopt: the process still runs after `patience`.
std::optional<int> AwaitStatus(pid_t process, std::chrono::milliseconds patience);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_JOB_SUPERVISOR_H_
