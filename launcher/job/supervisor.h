#ifndef DTRUN_LAUNCHER_JOB_SUPERVISOR_H_
#define DTRUN_LAUNCHER_JOB_SUPERVISOR_H_

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "launcher/job/interruption.h"
#include "launcher/support/host_system.h"
#include "launcher/support/poller.h"

namespace dtrun::launcher {

/// Starts one process (mpirun) and sees to it that nothing of it is left: it dies with this one,
/// gets none of the terminal's signals, and whatever it leaves behind on this host is killed.
/// One per program: it changes the program's signal mask and makes it the reaper of orphans.
///
/// SIGINT, SIGTERM, SIGHUP or SIGQUIT ends it as interruption.h says, SIGUSR1 asks for the notice
/// alone, SIGTSTP for a pause. SIGHUP or SIGTSTP that was ignored when this program started (nohup)
/// stays ignored. SIGINT does not: whoever sends it to a job in the background means it.
class Supervisor {
 public:
  struct Requests {
    std::function<void()> notice;  ///< give the ranks an early notice
    /// Send SIGTERM to the ranks. False: none runs, so the process can end at once.
    std::function<bool()> terminate;
    std::function<void()> pause;   ///< stop the ranks, then this process
    std::function<void()> resume;  ///< SIGCONT has come
  };

  /// Signals are handled while `poller` waits.
  Supervisor(Poller& poller, std::chrono::seconds grace, Requests requests);
  ~Supervisor();

  /// Starts `argv` with exactly `environment` (NAME=value), its stdin empty, in a session of its
  /// own. Its stderr is the file `messages`; -1: nowhere. Throws LaunchError kInternal.
  pid_t Start(
      const std::vector<std::string>& argv, const std::vector<std::string>& environment,
      int messages);

  /// The process has ended; with this status of waitpid.
  bool ended() const { return ended_; }
  int wait_status() const { return wait_status_; }
  /// The signal that told dtrun to end the job; 0: none.
  int interruption() const { return interruption_.signal(); }
  /// It goes on for a while, since ranks take notices.
  bool in_grace() const { return interruption_.in_grace(); }

  /// Does what the signal would do.
  void Interrupt(int signal);
  /// Ends the ranks, then the process, without a signal to blame; kills it `patience` later.
  void End(std::chrono::seconds patience = Interruption::kKillAfter);
  /// The ranks were told to terminate, and the process was not told yet.
  bool ranks_terminate() const { return ranks_terminate_; }
  /// Tells the process to end: its ranks have.
  void EndProcess();
  /// Continues a process that something else has stopped; true when it was.
  bool ContinueIfStopped();
  pid_t process() const { return process_; }
  /// Called now and then: ends or kills a process that has not ended in time.
  void Tick(const NoticeAnswers& answers);

  /// Once the process has ended: kills its descendants on this host, but not the children `spared`.
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

/// What a process says on its stderr.
class Complaints {
 public:
  /// Owns `file`, the end of the pipe to read from.
  Complaints(Poller& poller, int file);
  ~Complaints();
  Complaints(const Complaints&) = delete;
  Complaints& operator=(const Complaints&) = delete;

  /// Why it ended; the lines before are banners. "": it has said nothing.
  std::string LastLine() const;
  /// Reads to the end, or until nothing has come for a second.
  void Drain();

 private:
  bool Read();

  Poller& poller_;
  int file_;
  std::string text_;
};

/// The process of an agent, or of the ssh that leads to one.
struct AgentProcess {
  pid_t process;
  int channel;     ///< a socket: its stdin and stdout
  int complaints;  ///< a pipe: its stderr
};

/// Starts it in a session of its own. Throws LaunchError kInternal.
AgentProcess StartAgentProcess(const std::vector<std::string>& words);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_JOB_SUPERVISOR_H_
