// dtrun_local COUNT[@HOST]... [--shell WORDS] [--fanout N] [-x NAME]... WRAPPER WORD...: replaces
// mpirun in a job without MPI. Each COUNT is a number of consecutive ranks, on HOST or on this
// machine.
// --starter WORDS replaces --shell if WORDS belong to a scheduler: they take a path on HOST as it
// is, without quotes, and start a part of the scheduler's job (kIsStep).
//
// dtrun_local starts the wrapper once for each rank of this machine, in a new process group, with
// its rank in DTRUN_RANK. For each HOST, the remote shell WORDS starts another dtrun_local, without
// a request. That one gets the variables NAME and the command as frames over its stdin, so no value
// of a variable stands on a command line. With more than N hosts, the first N start the ranks of
// the others in the same way (DealToBranches).
//
// After the first failed rank, or a signal to end, all ranks get SIGTERM, and SIGKILL soon after.
// The exit code is that of the first failed rank, or 128 + signal for a killed one. After a signal
// to end, dtrun_local dies of the same signal. SIGUSR1 and SIGUSR2 are forwarded to the ranks.
//
// With --restarts, dtrun decides about lost ranks, and the agents start them again. dtrun_local
// then stays until it gets a signal to end.
//
// If this process dies, the wrappers and the remote shells die. A dtrun_local on another host ends
// its ranks when its stdin ends.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/launch_env.h"
#include "base/text.h"
#include "launcher/protocol/agent_link.h"
#include "launcher/protocol/frame.h"
#include "launcher/support/environment.h"
#include "launcher/support/host_system.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/poller.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {
namespace {

using base::Text;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using Words = std::vector<std::string>;

constexpr milliseconds kGrace{500};         // between SIGTERM and SIGKILL
constexpr milliseconds kRemoteGrace{2000};  // from then until the remote shells are killed

// Consecutive ranks of one host.
struct Part {
  int count = 0;
  std::string host = {};  // "": this machine
  int first = 0;          // its first rank
  int number = 0;         // among the other hosts, from 1
};

// How other hosts are reached, and the command and variables of their ranks.
struct Reaching {
  Words shell = {};            // goes before a host and the path of a program
  bool parses_command = true;  // that path needs quotes
  size_t fanout = 0;           // hosts that are reached from one place; 0: any number
  Words exported = {};         // names of variables
  Words command = {};          // the wrapper and its arguments
};

// The command line.
struct Request {
  std::vector<Part> parts = {};  // in the order of the ranks
  Reaching reaching = {};
};

std::optional<Part> ParsePart(const std::string& word) {
  const size_t at = word.find('@');
  const auto count = base::ParseInteger(word.substr(0, at));
  if (!count || *count < 1) return std::nullopt;
  return Part{static_cast<int>(*count), at == std::string::npos ? "" : word.substr(at + 1)};
}

std::optional<Request> ParseRequest(const Words& words) {
  Request request;
  Reaching& reaching = request.reaching;
  int first = 0, number = 0;
  auto word = words.begin();
  for (; word != words.end(); ++word) {
    std::optional<Part> part = ParsePart(*word);
    if (!part) break;
    part->first = std::exchange(first, first + part->count);
    if (!part->host.empty()) part->number = ++number;
    request.parts.push_back(*part);
  }
  const auto is_option = [](const std::string& option) {
    return option == "-x" || option == "--shell" || option == "--starter" || option == "--fanout";
  };
  for (; words.end() - word > 2 && is_option(*word); word += 2) {
    if (*word == "-x") reaching.exported.push_back(word[1]);
    if (*word == "--fanout")
      reaching.fanout = static_cast<size_t>(base::ParseInteger(word[1]).value_or(0));
    if (*word != "--shell" && *word != "--starter") continue;
    reaching.shell = SplitWords(word[1]);
    reaching.parses_command = *word == "--shell";
  }
  reaching.command.assign(word, words.end());
  if (request.parts.empty() || reaching.command.size() < 2) return std::nullopt;
  return request;
}

int RankCount(const Request& request) {
  int count = 0;
  for (const Part& part : request.parts) count += part.count;
  return count;
}

Variables OwnVariables() {
  Variables variables;
  for (char** variable = environ; *variable != nullptr; ++variable)
    variables.emplace_back(*variable);
  return variables;
}

void SetOwnVariable(const std::string& variable) {
  const std::string name = NameOf(variable);
  setenv(name.c_str(), ValueOf({variable}, name).c_str(), 1);
}

int RefuseUse() {
  std::fputs("dtrun: dtrun_local is started by dtrun, not by hand\n", stderr);
  return static_cast<int>(ExitCode::kUsage);
}

// The dtrun_local of another host.
struct RemoteStarter {
  int number;           // among the other hosts, from 1
  bool spared;          // the job can lose all ranks of that host
  pid_t shell = -1;     // the remote shell
  bool running = true;  // the remote shell
  int status = 0;       // of the remote shell, when it has ended
  bool ended = false;   // the exit code has come
  bool lost = false;    // the remote shell or its channel has ended before
  std::unique_ptr<FrameStream> stream = nullptr;
};

class Starter {
 public:
  // `file` is the path of this program on all hosts.
  explicit Starter(std::string file) : file_(std::move(file)) {
    sigset_t handled;
    sigemptyset(&handled);
    for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2})
      sigaddset(&handled, signal);
    sigprocmask(SIG_BLOCK, &handled, &original_mask_);
    sigset_t of_files;  // write then reports a closed connection
    sigemptyset(&of_files);
    sigaddset(&of_files, SIGPIPE);
    sigprocmask(SIG_BLOCK, &of_files, nullptr);
    signals_ = signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals_ < 0)
      throw LaunchError(ExitCode::kInternal, Text("cannot watch signals: ", std::strerror(errno)));
    poller_.Watch(signals_, POLLIN, [this](short) { HandleSignals(); });
  }

  // Starts all ranks. Returns the exit code that mpirun would return.
  int Run(const Request& request, const base::LaunchEnv& launch) {
    stays_ = launch.restarts;
    reaching_ = request.reaching;
    std::vector<Part> others;
    for (const Part& part : request.parts)
      if (!part.host.empty()) others.push_back(part);
    StartOthers(others, launch);
    for (const Part& part : request.parts)
      if (part.host.empty()) StartHere(part.first, part.count, launch);
    AwaitEnd();
    return exit_code_;
  }

  // Starts the ranks of this host that the dtrun_local of another host sends, and tells it their
  // exit code.
  int Serve(bool is_step) {
    is_step_ = is_step;
    if (is_step) ForgetStep();
    const int in = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    const int out = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (in < 0 || out < 0 || null < 0)
      throw LaunchError(ExitCode::kInternal, "cannot open files" + ErrorWithLimit(errno));
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO}) dup2(null, stream);
    prctl(PR_SET_CHILD_SUBREAPER, 1);  // orphans of ranks come here, where the agent finds them
    serves_ = true;
    caller_ = std::make_unique<FrameStream>(
        poller_, in, out, [this](const Frame& frame) { Obey(frame); },
        [this](const std::string& why) {
          if (!why.empty()) std::fprintf(stderr, "dtrun_local: %s\n", why.c_str());
          End(128 + SIGHUP);
        });
    if (is_step) caller_->SayWhatCame();
    while (!launched_ && !ending_) poller_.Wait(milliseconds(-1));
    if (!launched_ && interruption_ == 0) return RefuseUse();
    AwaitEnd();
    if (exit_code_ == 0) TellCaller(0);
    caller_->Flush();
    return exit_code_;
  }

 private:
  // Ranks are not to take the scheduler's variables and descriptors of this one process for theirs.
  static void ForgetStep() {
    for (const std::string& variable : OwnVariables())
      if (variable.starts_with("PMI_") || variable.starts_with("PMIX_"))
        unsetenv(NameOf(variable).c_str());
    close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  }

  void StartHere(int first, int count, base::LaunchEnv launch) {
    for (launch.rank = first; launch.rank < first + count && !ending_; ++launch.rank)
      StartRank(launch);
  }

  void StartRank(const base::LaunchEnv& launch) {
    Variables environment = OwnVariables();
    for (const auto& [name, value] : base::WriteLaunchEnv(launch)) Set(environment, name, value);
    const std::vector<char*> argv = Pointers(reaching_.command), variables = Pointers(environment);
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
    if (launch.restarts || (launch.servers > 0 && launch.rank >= launch.servers))
      spared_.insert(child);
  }

  void StartOthers(const std::vector<Part>& others, const base::LaunchEnv& launch) {
    for (const Branch<Part>& branch : DealToBranches(others, reaching_.fanout))
      if (!ending_) StartRemote(branch, launch);
  }

  // The remote shell stays in this process group, so that SIGKILL to the group reaches it.
  void StartRemote(const Branch<Part>& branch, const base::LaunchEnv& launch) {
    const Part& part = branch.head;
    const bool parses = reaching_.parses_command;
    Words words = reaching_.shell;
    words.insert(words.end(), {part.host, parses ? ShellQuoted(file_) : file_});
    if (!parses) words.emplace_back(kIsStep);
    const std::vector<char*> argv = Pointers(words);
    const pid_t parent = getpid();
    int channel[2];
    const bool connected = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) == 0;
    const pid_t child = connected ? fork() : -1;
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      dup2(channel[1], STDIN_FILENO);
      dup2(channel[1], STDOUT_FILENO);
      sigprocmask(SIG_SETMASK, &original_mask_, nullptr);
      execvp(argv[0], argv.data());
      _exit(static_cast<int>(ExitCode::kNotFound));
    }
    if (child < 0)
      throw LaunchError(ExitCode::kInternal, "cannot start a process" + ErrorWithLimit(errno));
    close(channel[1]);
    remotes_.push_back(std::make_unique<RemoteStarter>(RemoteStarter{
        .number = part.number,
        .spared = launch.restarts || (launch.servers > 0 && part.first >= launch.servers),
        .shell = child}));
    RemoteStarter& remote = *remotes_.back();
    remote.stream = std::make_unique<FrameStream>(
        poller_, channel[0], channel[0],
        [this, &remote](const Frame& frame) { Hear(remote, frame); },
        [this, &remote](const std::string&) { Lose(remote); });
    if (!parses) remote.stream->SetWindow();
    TellWhatToStart(branch, *remote.stream);
  }

  void TellWhatToStart(const Branch<Part>& branch, FrameStream& stream) {
    for (const std::string& variable : OwnVariables())
      if (std::find(reaching_.exported.begin(), reaching_.exported.end(), NameOf(variable)) !=
          reaching_.exported.end())
        stream.Send({FrameType::kVariable, -1, variable});
    for (const std::string& word : reaching_.command) stream.Send({FrameType::kWord, -1, word});
    if (!branch.below.empty()) {
      const auto fanout = static_cast<int>(reaching_.fanout);
      stream.Send({FrameType::kReach, fanout, ShellLine(reaching_.shell)});
    }
    for (const Part& part : branch.below)
      stream.Send(
          {FrameType::kBelow, part.first, Text(part.number, ' ', part.count, ' ', part.host)});
    std::error_code ignored;
    stream.Send({FrameType::kLaunch, branch.head.first, std::filesystem::current_path(ignored)});
  }

  void Hear(RemoteStarter& remote, const Frame& frame) {
    if (frame.type != FrameType::kCode) return;
    remote.ended = true;
    const auto code = base::ParseInteger(frame.body);
    if (code != 0) End(static_cast<int>(code.value_or(static_cast<int>(ExitCode::kInternal))));
  }

  // The engine (local_engine.cc) reads the line, which dtrun does not show. If the whole host is
  // lost, so is its agent. dtrun then names the host, if it notices that before this process ends.
  void Lose(RemoteStarter& remote) {
    constexpr milliseconds kHostFirst{500};
    if (remote.ended || std::exchange(remote.lost, true) || ending_) return;
    const char* what = ShellWasKilled(remote) ? "disconnected" : "lost";
    if (!remote.spared) std::this_thread::sleep_for(kHostFirst);
    std::fprintf(stderr, "dtrun_local: %s %d\n", what, remote.number);
    if (!remote.spared) End(static_cast<int>(ExitCode::kUnavailable));
  }

  // A remote shell may end while another process keeps its channel open.
  void LoseEnded() {
    for (const auto& remote : remotes_) {
      if (remote->running || remote->ended || remote->lost) continue;
      poller_.Wait(milliseconds(0));  // the exit code may have come just before
      Lose(*remote);
    }
  }

  // Whether a signal has ended the remote shell. A remote shell whose channel has ended ends soon.
  bool ShellWasKilled(RemoteStarter& remote) {
    constexpr milliseconds kLook{10};
    for (int looks = 100; looks > 0 && remote.running; --looks) {
      Reap();
      if (remote.running) std::this_thread::sleep_for(kLook);
    }
    if (!remote.running) return WIFSIGNALED(remote.status);
    kill(remote.shell, SIGKILL);
    return false;
  }

  void Obey(const Frame& frame) {
    if (frame.type == FrameType::kVariable) {
      SetOwnVariable(frame.body);
      reaching_.exported.push_back(NameOf(frame.body));
    }
    if (frame.type == FrameType::kWord) reaching_.command.push_back(frame.body);
    if (frame.type == FrameType::kReach) {
      reaching_.shell = SplitWords(frame.body);
      reaching_.fanout = static_cast<size_t>(std::max(frame.rank, 0));
    }
    if (frame.type == FrameType::kBelow) AddBelow(frame);
    if (frame.type == FrameType::kLaunch && !launched_) Launch(frame.rank, frame.body);
    if (frame.type == FrameType::kSignal)
      PassOn(static_cast<int>(base::ParseInteger(frame.body).value_or(SIGTERM)));
  }

  void AddBelow(const Frame& frame) {
    const std::vector<std::string> words = base::Split(frame.body, ' ');
    if (words.size() != 3) return End(static_cast<int>(ExitCode::kInternal));
    below_.push_back(
        {.count = static_cast<int>(base::ParseInteger(words[1]).value_or(0)),
         .host = words[2],
         .first = frame.rank,
         .number = static_cast<int>(base::ParseInteger(words[0]).value_or(0))});
  }

  // The agent has reported a missing folder if the program needs it. Otherwise the ranks stay in
  // the folder of the login.
  void Launch(int first, const std::string& folder) {
    launched_ = true;
    std::error_code ignored;
    std::filesystem::current_path(folder, ignored);
    const std::optional<base::LaunchEnv> launch = base::ReadLaunchEnv(base::ProcessEnv);
    if (!launch || reaching_.command.empty() || first < 0 ||
        first >= base::RankCount(launch->hosts))
      return End(static_cast<int>(ExitCode::kInternal));
    stays_ = launch->restarts;
    StartOthers(below_, *launch);
    const auto host = static_cast<size_t>(base::HostOfRank(launch->hosts, first));
    StartHere(first, launch->hosts[host].slots, *launch);
  }

  void TellCaller(int code) { caller_->Send({FrameType::kCode, -1, Text(code)}); }

  void HandleSignals() {
    signalfd_siginfo info;
    while (read(signals_, &info, sizeof info) == sizeof info) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGCHLD) continue;
      // A scheduler tells all processes of the job on this host. The agent passes it on to dtrun.
      if (signal == SIGTERM && is_step_) continue;
      if (signal != SIGUSR1 && signal != SIGUSR2 && !ending_) interruption_ = signal;
      PassOn(signal);
    }
    Reap();
  }

  void PassOn(int signal) {
    if (signal == SIGUSR1 || signal == SIGUSR2) return SignalAll(signal);
    End(128 + signal);
  }

  // Processes that a wrapper leaves in its group are ended by the agent of this host.
  void Reap() {
    int status = 0;
    for (pid_t child; (child = waitpid(-1, &status, WNOHANG)) > 0;) {
      for (const auto& remote : remotes_) {
        if (remote->shell != child) continue;
        remote->running = false;
        remote->status = status;
      }
      // An unknown child is an orphan of a rank.
      if (std::erase(processes_, child) == 0) continue;
      // The wrapper was killed. dtrun goes on without that rank, or starts it again.
      if (spared_.erase(child) > 0 && WIFSIGNALED(status)) continue;
      const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      if (code != 0) End(code);
    }
  }

  // Ends all ranks. Only the first call sets the exit code. If a signal ends this process, the
  // caller gets no code: it then reports a lost dtrun_local.
  void End(int code) {
    if (ending_) return;
    ending_ = true;
    exit_code_ = code;
    kill_at_ = Clock::now() + kGrace;
    SignalAll(SIGTERM);
    if (serves_ && interruption_ == 0) TellCaller(code);
  }

  void SignalAll(int signal) {
    for (const pid_t process : processes_) kill(-process, signal);
    for (const auto& remote : remotes_)
      remote->stream->Send({FrameType::kSignal, -1, Text(signal)});
  }

  bool SomeRemoteRuns() const {
    return std::any_of(
        remotes_.begin(), remotes_.end(), [](const auto& remote) { return remote->running; });
  }

  void AwaitEnd() {
    while (!processes_.empty() || SomeRemoteRuns() || (stays_ && !ending_)) {
      poller_.Wait(Patience());
      LoseEnded();
      if (!ending_ || Clock::now() < kill_at_) continue;
      for (const pid_t process : processes_) kill(-process, SIGKILL);
      if (Clock::now() < kill_at_ + kRemoteGrace) continue;
      for (const auto& remote : remotes_)
        if (remote->running) kill(remote->shell, SIGKILL);
    }
    if (interruption_ != 0) DieOf(interruption_);
  }

  milliseconds Patience() const {
    if (!ending_) return milliseconds(-1);
    const auto until = processes_.empty() ? kill_at_ + kRemoteGrace : kill_at_;
    // After SIGKILL the processes end soon. A short wait repeats SIGKILL for a wrapper that was
    // just starting.
    return std::max(std::chrono::ceil<milliseconds>(until - Clock::now()), milliseconds(10));
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

  Poller poller_;
  int signals_ = -1;
  sigset_t original_mask_;
  std::vector<pid_t> processes_;  // wrappers that have not ended
  std::set<pid_t> spared_;        // wrappers of ranks that the job can lose
  std::vector<std::unique_ptr<RemoteStarter>> remotes_;
  std::unique_ptr<FrameStream> caller_;  // in Serve: the dtrun_local that has started this one
  std::string file_;
  Reaching reaching_;
  std::vector<Part> below_;  // in Serve: hosts whose ranks this process starts
  bool serves_ = false, is_step_ = false, launched_ = false;
  bool stays_ = false;  // until End
  bool ending_ = false;
  int interruption_ = 0, exit_code_ = 0;
  Clock::time_point kill_at_{};
};

int Main(const std::string& file, const Words& arguments) {
  const bool is_step = arguments == Words{kIsStep};
  if ((arguments.empty() || is_step) && isatty(STDIN_FILENO) == 0)
    return Starter(file).Serve(is_step);
  const std::optional<Request> request = ParseRequest(arguments);
  const std::optional<base::LaunchEnv> launch = base::ReadLaunchEnv(base::ProcessEnv);
  if (!request || !launch || RankCount(*request) != base::RankCount(launch->hosts))
    return RefuseUse();
  return Starter(file).Run(*request, *launch);
}

}  // namespace
}  // namespace dtrun::launcher

int main(int argc, char** argv) {
  try {
    return dtrun::launcher::Main(argc > 0 ? argv[0] : "", {argv + std::min(argc, 1), argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dtrun: %s\n", error.what());
    return static_cast<int>(dtrun::launcher::ExitCode::kInternal);
  }
}
