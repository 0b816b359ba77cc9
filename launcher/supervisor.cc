#include "launcher/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "base/text.h"
#include "launcher/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::Text;

constexpr std::chrono::seconds kGrace(10);

std::vector<char*> Pointers(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Between fork and exec: only what is safe there.
[[noreturn]] void Become(
    char* const argv[], char* const environment[], const sigset_t& mask, pid_t parent) {
  setsid();
  // mpirun told to end takes its ranks with it, those of other hosts too, and cleans up.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  close(null);
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

Supervisor::Supervisor() {
  sigset_t handled;
  sigemptyset(&handled);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD}) sigaddset(&handled, signal);
  sigprocmask(SIG_BLOCK, &handled, &original_mask_);
  signals_ = signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals_ < 0)
    throw LaunchError(ExitCode::kInternal, Text("cannot watch signals: ", std::strerror(errno)));
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

pid_t Supervisor::Start(
    const std::vector<std::string>& argv, const std::vector<std::string>& environment) {
  const std::vector<char*> words = Pointers(argv);
  const std::vector<char*> variables = Pointers(environment);
  const pid_t parent = getpid();
  process_ = fork();
  if (process_ == 0) Become(words.data(), variables.data(), original_mask_, parent);
  if (process_ < 0)
    throw LaunchError(ExitCode::kInternal, Text("cannot start a process: ", std::strerror(errno)));
  return process_;
}

JobEnd Supervisor::WaitForEnd(pid_t spared, const TimeLimits& limits) {
  const auto after = [begin = Clock::now()](int seconds) {
    return seconds > 0 ? std::optional(begin + std::chrono::seconds(seconds)) : std::nullopt;
  };
  start_deadline_ = after(limits.start_s);
  whole_deadline_ = after(limits.whole_s);
  JobEnd end;
  while (!Reap(end)) {
    pollfd ready = {signals_, POLLIN, 0};
    poll(&ready, 1, MsToNextDeadline());
    HandleSignals(end);
    HandleTime(end, limits);
  }
  KillLeftOvers(spared);
  return end;
}

int Supervisor::MsToNextDeadline() const {
  int next = -1;
  for (const auto& deadline : {start_deadline_, whole_deadline_, kill_deadline_}) {
    if (!deadline) continue;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now()).count();
    const int ms = static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000'000));
    if (next < 0 || ms < next) next = ms;
  }
  return next;
}

// mpirun ends its ranks, those of other hosts too, and cleans up.
void Supervisor::EndJob() {
  start_deadline_.reset();
  whole_deadline_.reset();
  kill_deadline_ = Clock::now() + kGrace;
  kill(process_, SIGTERM);
}

void Supervisor::HandleTime(JobEnd& end, const TimeLimits& limits) {
  const auto passed = [now = Clock::now()](std::optional<Clock::time_point>& deadline) {
    if (!deadline || now < *deadline) return false;
    deadline.reset();
    return true;
  };
  if (passed(kill_deadline_)) kill(-process_, SIGKILL);
  if (passed(start_deadline_) && !limits.has_started()) {
    end.limit = JobEnd::Limit::kStart;
    EndJob();
  }
  if (passed(whole_deadline_)) {
    end.limit = JobEnd::Limit::kWhole;
    EndJob();
  }
}

void Supervisor::HandleSignals(JobEnd& end) {
  signalfd_siginfo info;
  while (read(signals_, &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) continue;
    if (end.interruption == 0) {
      end.interruption = signal;
      EndJob();
    } else {
      kill(-process_, SIGKILL);
    }
  }
}

// Orphans of the job become this program's children and are reaped on the way.
bool Supervisor::Reap(JobEnd& end) {
  int status = 0;
  for (pid_t child; (child = waitpid(-1, &status, WNOHANG)) > 0;) {
    if (child != process_) continue;
    end.wait_status = status;
    return true;
  }
  return false;
}

// The children of a killed process become ours in turn.
void Supervisor::KillLeftOvers(pid_t spared) {
  for (bool found = true; found;) {
    found = false;
    for (pid_t child : Children()) {
      if (child == spared) continue;
      found = true;
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }
}

}  // namespace dtrun::launcher
