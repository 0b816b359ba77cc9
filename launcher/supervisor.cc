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

constexpr std::chrono::seconds kGrace{10};

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

Supervisor::Supervisor(Poller& poller) : poller_(poller) {
  sigset_t handled;
  sigemptyset(&handled);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD}) sigaddset(&handled, signal);
  sigprocmask(SIG_BLOCK, &handled, &original_mask_);
  // Who reads our output and leaves is seen by write.
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  sigprocmask(SIG_BLOCK, &broken_pipe, nullptr);
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

void Supervisor::HandleSignals() {
  signalfd_siginfo info;
  while (read(signals_, &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal != SIGCHLD) Interrupt(signal);
  }
  Reap();
}

void Supervisor::Interrupt(int signal) {
  if (interruption_ != 0) return KillProcess();
  interruption_ = signal;
  End();
}

void Supervisor::End() {
  if (process_ > 0 && !ended_) kill(process_, SIGTERM);
  kill_at_ = std::min(kill_at_, std::chrono::steady_clock::now() + kGrace);
}

void Supervisor::Tick() {
  if (std::chrono::steady_clock::now() >= kill_at_) KillProcess();
}

void Supervisor::KillProcess() {
  if (process_ > 0 && !ended_) kill(-process_, SIGKILL);
}

// Orphans of the job become this program's children and are reaped on the way.
void Supervisor::Reap() {
  int status = 0;
  for (pid_t child; process_ > 0 && (child = waitpid(-1, &status, WNOHANG)) > 0;) {
    if (child != process_) continue;
    wait_status_ = status;
    ended_ = true;
  }
}

// The children of a killed process become ours in turn.
void Supervisor::KillLeftOvers(const std::vector<pid_t>& spared) {
  for (bool found = true; found;) {
    found = false;
    for (pid_t child : Children()) {
      if (std::find(spared.begin(), spared.end(), child) != spared.end()) continue;
      found = true;
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }
}

}  // namespace dtrun::launcher
