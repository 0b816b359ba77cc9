#ifndef DTRUN_LAUNCHER_JOB_SUPERVISOR_H_
#define DTRUN_LAUNCHER_JOB_SUPERVISOR_H_

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/support/host_system.h"
#include "launcher/support/poller.h"

namespace dtrun::launcher {

/// The answers of the ranks to an early notice.
struct NoticeAnswers {
  int awaited = 0;   ///< running ranks that have not answered
  int takers = 0;    ///< ranks with a program that takes notices
  int starting = 0;  ///< other ranks whose program starts: it may take notices soon
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
  /// A host was told to end the job, as a cluster's scheduler does on all hosts. The same as
  /// SIGTERM to dtrun, once for all hosts and dtrun itself.
  Step OnHostTold(Time now);
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
  bool host_was_told_ = false;  // and dtrun was not
  Time signalled_ = {}, kill_by_ = {};
};

/// Starts one process (mpirun) and leaves nothing of it behind. The process ends when this program
/// dies and gets no signals from the terminal. The supervisor kills all processes that mpirun
/// leaves on this host. One Supervisor per program: the constructor changes the signal mask and
/// makes the program the reaper of orphans.
///
/// SIGINT, SIGTERM, SIGHUP or SIGQUIT ends the process in the steps of Interruption. SIGUSR1 asks
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
  /// `messages` becomes its stdout and stderr, because the agents carry the output of the ranks;
  /// -1: /dev/null. After the end of the process, another one can be started. Throws LaunchError
  /// kInternal.
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
  /// Acts as if SIGTERM had come to dtrun and to a host: see Interruption::OnHostTold.
  void InterruptForHost();
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

/// Waits for the end of a child, and returns its status from waitpid, also if a Supervisor has
/// reaped it. nullopt: the process still runs after `patience`.
std::optional<int> AwaitStatus(pid_t process, std::chrono::milliseconds patience);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_JOB_SUPERVISOR_H_
