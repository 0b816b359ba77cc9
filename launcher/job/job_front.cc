// The front of a job that outlives it: names the job, passes signals on, and returns the exit code
// that the holder (job_holder.cc) sends.

#include "launcher/job/job_front.h"

#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/text.h"
#include "launcher/job/job_holder.h"
#include "launcher/job/job_run.h"
#include "launcher/protocol/frame.h"
#include "launcher/support/host_system.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/poller.h"

namespace dtrun::launcher {
namespace {

using base::ParseJson;
using base::Text;
using nlohmann::json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// How long a job may take to stop its ranks and itself.
constexpr milliseconds kUntilStopped{2500};

std::string RandomName() {
  constexpr std::string_view kLetters = "abcdefghijkmnpqrstuvwxyz23456789";  // 32
  unsigned char bytes[6] = {};
  if (getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes))
    throw LaunchError(ExitCode::kInternal, "cannot name the job" + ErrorWithLimit(errno));
  std::string name;
  for (const unsigned char byte : bytes) name += kLetters[byte % kLetters.size()];
  return name;
}

std::string SocketPrefix() { return Text("dtrun.held.", geteuid(), '.'); }

// The user's jobs on this host that a dtrun could take over.
std::string HeldJobs() {
  const std::string prefix = "@" + SocketPrefix();
  std::vector<std::string> names;
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);)
    if (const size_t at = line.find(prefix); at != std::string::npos)
      names.push_back(line.substr(at + prefix.size()));
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names.empty() ? "no job" : base::Join(names, ", ");
}

class Front {
 public:
  // Owns `connection`. `tell` gets the holder's first frame.
  Front(int connection, std::function<void(const json&)> tell) : tell_(std::move(tell)) {
    sigset_t handled;
    sigemptyset(&handled);
    for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGTSTP, SIGCONT, SIGWINCH})
      sigaddset(&handled, signal);
    sigprocmask(SIG_BLOCK, &handled, nullptr);
    signals_ = signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals_ < 0)
      throw LaunchError(ExitCode::kInternal, Text("cannot watch signals: ", std::strerror(errno)));
    poller_.Watch(signals_, POLLIN, [this](short) { HandleSignals(); });
    holder_ = std::make_unique<FrameStream>(
        poller_, connection, connection, [this](const Frame& frame) { Hear(frame); },
        [this](const std::string&) { is_gone_ = true; });
  }

  int Run() {
    while (!code_ && !refusal_ && !is_gone_) poller_.Wait(milliseconds(-1));
    if (code_) return *code_;
    if (refusal_) throw LaunchError(*refusal_);
    throw LaunchError(
        ExitCode::kInternal,
        "the process dtrun-holder, which stands between this dtrun and its job, was killed; the "
        "job ends");
  }

 private:
  void Hear(const Frame& frame) {
    if (frame.type == FrameType::kCode)
      code_ = static_cast<int>(
          base::ParseInteger(frame.body).value_or(static_cast<int>(ExitCode::kInternal)));
    if (frame.type != FrameType::kHeld && frame.type != FrameType::kRefused) return;
    const json body = ParseJson(frame.body);
    if (frame.type == FrameType::kRefused) {
      refusal_.emplace(static_cast<ExitCode>(body.at("code").get<int>()), body.at("text"));
      return;
    }
    job_ = body.at("pid");
    tell_(body);
    holder_->Send({FrameType::kContinue});
  }

  void HandleSignals() {
    signalfd_siginfo info;
    while (read(signals_, &info, sizeof info) == sizeof info) {
      const int signal = static_cast<int>(info.ssi_signo);
      holder_->Send({FrameType::kSignal, -1, Text(signal)});
      if (signal == SIGTSTP) StopWithJob();
    }
  }

  // The shell sees this process alone.
  void StopWithJob() {
    holder_->Flush();
    const Clock::time_point until = Clock::now() + kUntilStopped;
    const auto stopped = [&] { return ViewProcess(job_).value_or(ProcessView()).stopped(); };
    while (!stopped() && Clock::now() < until) std::this_thread::sleep_for(milliseconds(10));
    raise(SIGSTOP);
  }

  Poller poller_;
  std::function<void(const json&)> tell_;
  std::unique_ptr<FrameStream> holder_;
  int signals_ = -1;
  pid_t job_ = -1;
  std::optional<int> code_;
  std::optional<LaunchError> refusal_;
  bool is_gone_ = false;
};

}  // namespace

int RunHeld(std::chrono::seconds grace, const std::function<int()>& work) {
  const std::string name = RandomName();
  const int listener = ListenForUser(SocketPrefix() + name);
  Say(Text(
      "job ", name, ": if this dtrun is lost, dtrun --attach ", name, " takes its place within ",
      grace.count(), " s"));
  int channel[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) != 0)
    throw LaunchError(ExitCode::kInternal, "cannot make a socket" + ErrorWithLimit(errno));
  const pid_t holder = fork();
  if (holder < 0)
    throw LaunchError(ExitCode::kInternal, "cannot start a process" + ErrorWithLimit(errno));
  if (holder == 0) {
    close(channel[0]);
    HoldJob(name, grace, listener, channel[1], work);
  }
  close(channel[1]);
  close(listener);
  return Front(channel[0], [](const json&) {}).Run();
}

int AttachToJob(const std::string& name) {
  const int connection = ConnectToUser(SocketPrefix() + name);
  if (connection < 0)
    throw LaunchError(
        ExitCode::kUnavailable, Text(
                                    "--attach ", name, ": found ", HeldJobs(),
                                    " of this user on this host; expected a job that was started "
                                    "with --orphan-grace, less than that time after its dtrun was "
                                    "lost"));
  SendWithFiles(connection, Encode({FrameType::kAttach}), {STDOUT_FILENO, STDERR_FILENO});
  return Front(
             connection,
             [&](const json& held) {
               const auto lost_ms = held.at("lost_ms").get<int64_t>();
               char seconds[32];
               std::snprintf(seconds, sizeof seconds, "%.1f", static_cast<double>(lost_ms) / 1000);
               Say(Text("took job ", name, " over, ", seconds, " s after its dtrun was lost"));
             })
      .Run();
}

}  // namespace dtrun::launcher
