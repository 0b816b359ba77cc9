// dtrun_local RANKS WRAPPER WORD...: replaces mpirun if all ranks are on this host and the job
// needs no MPI. Starts the wrapper once for each rank, in a new process group, with its rank in
// DTRUN_RANK. After the first failed rank, or a signal to end, it sends SIGTERM to the other ranks
// and SIGKILL soon after. Its exit code is that of the first failed rank, or 128 + signal for a
// killed one. After a signal to end, it dies of the same signal. SIGUSR1 and SIGUSR2 are forwarded
// to the ranks.
//
// If this process dies, the wrappers die.

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/launch_env.h"
#include "base/text.h"
#include "launcher/support/environment.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::Text;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kGrace{500};  // between SIGTERM and SIGKILL

std::vector<char*> Pointers(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

Variables OwnVariables() {
  Variables variables;
  for (char** variable = environ; *variable != nullptr; ++variable)
    variables.emplace_back(*variable);
  return variables;
}

class Ranks {
 public:
  Ranks() {
    sigset_t handled;
    sigemptyset(&handled);
    for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2})
      sigaddset(&handled, signal);
    sigprocmask(SIG_BLOCK, &handled, &original_mask_);
    signals_ = signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals_ < 0)
      throw LaunchError(ExitCode::kInternal, Text("cannot watch signals: ", std::strerror(errno)));
  }

  // Returns the exit code that mpirun would return.
  int Run(int count, base::LaunchEnv launch, const std::vector<std::string>& words) {
    for (launch.rank = 0; launch.rank < count && !ending_; ++launch.rank) Start(launch, words);
    while (!processes_.empty()) {
      pollfd ready = {signals_, POLLIN, 0};
      poll(&ready, 1, PatienceMs());
      HandleSignals();
      Reap();
      if (ending_ && Clock::now() >= kill_at_) SignalAll(SIGKILL);
    }
    if (interruption_ != 0) DieOf(interruption_);
    return exit_code_;
  }

 private:
  void Start(const base::LaunchEnv& launch, const std::vector<std::string>& words) {
    Variables environment = OwnVariables();
    for (const auto& [name, value] : base::WriteLaunchEnv(launch)) Set(environment, name, value);
    const std::vector<char*> argv = Pointers(words), variables = Pointers(environment);
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      setpgid(0, 0);
      sigprocmask(SIG_SETMASK, &original_mask_, nullptr);
      execve(argv[0], argv.data(), variables.data());
      _exit(static_cast<int>(ExitCode::kNotExecutable));
    }
    if (child < 0) {
      const int error = errno;
      std::fprintf(stderr, "dtrun: cannot start rank %d: %s\n", launch.rank, std::strerror(error));
      return End(static_cast<int>(ExitCode::kInternal));
    }
    setpgid(child, child);  // the child does the same; either may be first
    processes_.push_back(child);
    if (launch.servers > 0 && launch.rank >= launch.servers) spared_.insert(child);
  }

  void HandleSignals() {
    signalfd_siginfo info;
    while (read(signals_, &info, sizeof info) == sizeof info) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGCHLD) continue;
      if (signal == SIGUSR1 || signal == SIGUSR2) {
        SignalAll(signal);
        continue;
      }
      if (!ending_) interruption_ = signal;
      End(128 + signal);
    }
  }

  // Processes that a wrapper leaves in its group are ended by the agent of this host.
  void Reap() {
    int status = 0;
    for (pid_t child; (child = waitpid(-1, &status, WNOHANG)) > 0;) {
      // An unknown child is an orphan of a rank.
      if (std::erase(processes_, child) == 0) continue;
      // A worker's wrapper was killed: dtrun goes on without that rank.
      if (spared_.erase(child) > 0 && WIFSIGNALED(status)) continue;
      const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      if (code != 0) End(code);
    }
  }

  // Ends all ranks. Only the first call sets the exit code.
  void End(int code) {
    if (ending_) return;
    ending_ = true;
    exit_code_ = code;
    kill_at_ = Clock::now() + kGrace;
    SignalAll(SIGTERM);
  }

  void SignalAll(int signal) {
    for (const pid_t process : processes_) kill(-process, signal);
  }

  int PatienceMs() const {
    if (!ending_) return -1;
    const auto left = std::chrono::ceil<milliseconds>(kill_at_ - Clock::now()).count();
    // After SIGKILL the wrappers end soon. A short wait repeats SIGKILL for a wrapper that was just
    // starting.
    return static_cast<int>(std::max<int64_t>(left, 10));
  }

  [[noreturn]] static void DieOf(int signal) {
    ::signal(signal, SIG_DFL);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    raise(signal);
    sigprocmask(SIG_UNBLOCK, &set, nullptr);
    _exit(128 + signal);
  }

  int signals_ = -1;
  sigset_t original_mask_;
  std::vector<pid_t> processes_;  // wrappers that have not ended
  std::set<pid_t> spared_;        // wrappers of ranks that the job can lose
  bool ending_ = false;
  int interruption_ = 0, exit_code_ = 0;
  Clock::time_point kill_at_{};
};

int Main(const std::vector<std::string>& arguments) {
  const auto count = base::ParseInteger(arguments.empty() ? "" : arguments[0]);
  const std::optional<base::LaunchEnv> launch = base::ReadLaunchEnv(base::ProcessEnv);
  if (arguments.size() < 3 || !launch || count != base::RankCount(launch->hosts)) {
    std::fputs("dtrun: dtrun_local is started by dtrun, not by hand\n", stderr);
    return static_cast<int>(ExitCode::kUsage);
  }
  return Ranks().Run(static_cast<int>(*count), *launch, {arguments.begin() + 1, arguments.end()});
}

}  // namespace
}  // namespace dtrun::launcher

int main(int argc, char** argv) {
  try {
    return dtrun::launcher::Main({argv + std::min(argc, 1), argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dtrun: %s\n", error.what());
    return static_cast<int>(dtrun::launcher::ExitCode::kInternal);
  }
}
