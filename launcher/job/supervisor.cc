// The supervisor turns each signal into a step of Interruption: the ranks get a notice or SIGTERM,
// then the process gets SIGTERM, then SIGKILL. Orphans of the process become children of this
// program, which reaps or kills them.

#include "launcher/job/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>
#include <utility>

#include "base/text.h"
#include "launcher/support/environment.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::Text;
using Clock = std::chrono::steady_clock;

}  // namespace

// ---- The steps of an interruption ---------------------------------------------------------------

Interruption::Step Interruption::OnSignal(int signal, Time now) {
  if (signal == SIGUSR1) return signal_ == 0 ? Step::kNotice : Step::kNone;
  if (signal_ == signal && now - signalled_ < kSameSignal) return Step::kNone;
  if (signal == SIGTERM && std::exchange(host_was_told_, false)) return Step::kNone;
  if (signal_ != 0) return Step::kKill;
  signal_ = signal;
  signalled_ = now;
  if (phase_ == Phase::kTerminated) return Step::kNone;
  // After SIGPIPE, no process reads the ranks' output, so dtrun does not wait for the ranks.
  if (grace_.count() == 0 || signal == SIGPIPE) return Terminate(now);
  phase_ = Phase::kAsking;
  return Step::kNotice;
}

Interruption::Step Interruption::OnHostTold(Time now) {
  if (signal_ != 0) return Step::kNone;
  const Step step = OnSignal(SIGTERM, now);
  host_was_told_ = true;
  return step;
}

Interruption::Step Interruption::OnEnd(Time now, std::chrono::seconds patience) {
  return phase_ == Phase::kTerminated ? Step::kNone : Terminate(now, patience);
}

Interruption::Step Interruption::OnTime(const NoticeAnswers& answers, Time now) {
  switch (phase_) {
    case Phase::kRunning: return Step::kNone;
    case Phase::kAsking:
      if (answers.takers > 0) {
        phase_ = Phase::kGrace;
        return OnTime(answers, now);
      }
      // A user who types Ctrl-C wants no delay.
      if (answers.starting > 0 && signal_ != SIGINT && now - signalled_ < kStartTime)
        return Step::kNone;
      return answers.awaited == 0 || now - signalled_ >= kAnswerTime ? Terminate(now) : Step::kNone;
    case Phase::kGrace: return now - signalled_ >= grace_ ? Terminate(now) : Step::kNone;
    case Phase::kTerminated: return now >= kill_by_ ? Step::kKill : Step::kNone;
  }
  return Step::kNone;
}

Interruption::Step Interruption::Terminate(Time now, std::chrono::seconds patience) {
  phase_ = Phase::kTerminated;
  kill_by_ = now + patience;
  return Step::kTerminate;
}

// ---- The process of the engine ------------------------------------------------------------------

namespace {

bool IsIgnored(int signal) {
  struct sigaction action;
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// signalfd receives a blocked signal even if it is ignored.
sigset_t HandledSignals() {
  sigset_t handled;
  sigemptyset(&handled);
  for (int signal : {SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGCONT, SIGCHLD})
    sigaddset(&handled, signal);
  for (int signal : {SIGHUP, SIGTSTP})
    if (!IsIgnored(signal)) sigaddset(&handled, signal);
  return handled;
}

// Runs between fork and exec, so it calls only async-signal-safe functions.
[[noreturn]] void Become(
    char* const argv[], char* const environment[], const sigset_t& mask, pid_t parent,
    int messages) {
  setsid();
  // On SIGTERM, mpirun ends its ranks on all hosts and cleans up.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  // Orphans of ranks become children of mpirun, where the agent finds them.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const int null = open("/dev/null", O_RDWR);
  dup2(null, STDIN_FILENO);
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO})
    dup2(messages >= 0 ? messages : null, stream);
  close(null);
  // At its end, mpirun handles SIGPIPE no more, but may still write to a rank that has just died.
  ::signal(SIGPIPE, SIG_IGN);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  execve(argv[0], argv, environment);
  _exit(static_cast<int>(ExitCode::kNotExecutable));
}

std::vector<pid_t> Children() {
  std::ifstream stream(Text("/proc/self/task/", getpid(), "/children"));
  std::vector<pid_t> children;
  for (pid_t child; stream >> child;) children.push_back(child);
  return children;
}

}  // namespace

Supervisor::Supervisor(Poller& poller, std::chrono::seconds grace, Requests requests)
    : poller_(poller), interruption_(grace), requests_(std::move(requests)) {
  const sigset_t handled = HandledSignals();
  sigprocmask(SIG_BLOCK, &handled, &original_mask_);
  // These signals stay blocked: write and read then report a closed output and a terminal of
  // another job.
  sigset_t of_files;
  sigemptyset(&of_files);
  for (int signal : {SIGPIPE, SIGTTIN}) sigaddset(&of_files, signal);
  sigprocmask(SIG_BLOCK, &of_files, nullptr);
  signals_ = signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals_ < 0)
    throw LaunchError(ExitCode::kInternal, Text("cannot watch signals: ", std::strerror(errno)));
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  poller_.Watch(signals_, POLLIN, [this](short) { HandleSignals(); });
}

Supervisor::~Supervisor() {
  poller_.Forget(signals_);
  close(signals_);
}

pid_t Supervisor::Start(
    const std::vector<std::string>& argv, const std::vector<std::string>& environment,
    int messages) {
  const std::vector<char*> words = Pointers(argv);
  const std::vector<char*> variables = Pointers(environment);
  const pid_t parent = getpid();
  ended_ = false;
  process_ = fork();
  if (process_ == 0) Become(words.data(), variables.data(), original_mask_, parent, messages);
  if (process_ < 0)
    throw LaunchError(ExitCode::kInternal, "cannot start a process" + ErrorWithLimit(errno));
  return process_;
}

void Supervisor::HandleSignals() {
  signalfd_siginfo info;
  while (read(signals_, &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGTSTP) requests_.pause();
    if (signal == SIGCONT) requests_.resume();
    if (signal != SIGTSTP && signal != SIGCONT && signal != SIGCHLD) Interrupt(signal);
  }
  Reap();
}

void Supervisor::Interrupt(int signal) { Do(interruption_.OnSignal(signal, Clock::now())); }
void Supervisor::InterruptForHost() { Do(interruption_.OnHostTold(Clock::now())); }

void Supervisor::End(std::chrono::seconds patience) {
  Do(interruption_.OnEnd(Clock::now(), patience));
}

void Supervisor::Tick(const NoticeAnswers& answers) {
  Do(interruption_.OnTime(answers, Clock::now()));
}

void Supervisor::Do(Interruption::Step step) {
  const bool runs = process_ > 0 && !ended_;
  switch (step) {
    case Interruption::Step::kNone: break;
    case Interruption::Step::kNotice: requests_.notice(); break;
    case Interruption::Step::kTerminate:
      ranks_terminate_ = requests_.terminate();
      if (!ranks_terminate_) EndProcess();
      break;
    case Interruption::Step::kKill:
      ranks_terminate_ = false;
      if (runs) kill(-process_, SIGKILL);
      break;
  }
}

void Supervisor::EndProcess() {
  ranks_terminate_ = false;
  if (process_ > 0 && !ended_) kill(process_, SIGTERM);
}

void Supervisor::KillProcess() {
  if (process_ > 0 && !ended_) kill(-process_, SIGKILL);
}

bool Supervisor::ContinueIfStopped() {
  return process_ > 0 && !ended_ && stopped_process_.Look(process_);
}

namespace {

// The status of each child that a Supervisor has reaped, other than its own process.
std::map<pid_t, int>& Reaped() {
  static std::map<pid_t, int> reaped;
  return reaped;
}

}  // namespace

// Orphans of the job become children of this program and are reaped here.
void Supervisor::Reap() {
  int status = 0;
  for (pid_t child; process_ > 0 && (child = waitpid(-1, &status, WNOHANG)) > 0;) {
    if (child != process_) {
      Reaped()[child] = status;
      continue;
    }
    wait_status_ = status;
    ended_ = true;
  }
}

// The children of a killed process become children of this program, so the loop goes on until none
// is left. A process that waits for a dead file system or a driver may not end for hours.
void Supervisor::KillLeftOvers(const std::vector<pid_t>& spared) {
  constexpr std::chrono::seconds kPatience{5};
  std::vector<pid_t> left = spared;
  for (bool found = true; found;) {
    found = false;
    for (pid_t child : Children()) {
      if (std::find(left.begin(), left.end(), child) != left.end()) continue;
      found = true;
      kill(child, SIGKILL);
      if (!AwaitStatus(child, kPatience)) left.push_back(child);
    }
  }
}

std::optional<int> AwaitStatus(pid_t process, std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kBetweenAttempts{5};
  const auto until = Clock::now() + patience;
  for (;;) {
    int status = 0;
    const pid_t ended = waitpid(process, &status, WNOHANG);
    if (ended == process) return status;
    if (const auto reaped = Reaped().find(process); reaped != Reaped().end()) {
      const int known = reaped->second;
      Reaped().erase(reaped);
      return known;
    }
    if (ended < 0 || Clock::now() >= until) return std::nullopt;
    std::this_thread::sleep_for(kBetweenAttempts);
  }
}

}  // namespace dtrun::launcher
