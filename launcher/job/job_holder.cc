// Three processes: the front, the holder, and the job. The user has started the front. It passes
// signals on and waits for the exit code. The job runs all of dtrun. The holder, its parent, writes
// the job's output where the front's output goes: it has the front's files.
//
// When its connection to the front ends, the holder keeps the output in a file without a name, and
// waits for another front, which connects to its abstract Unix socket and brings its own files. If
// none comes in time, the holder sends SIGTERM to the job. A job that ends meanwhile has its exit
// code kept for that time.
//
// Output to a regular file does not pass through the holder: a lost front does not end such a file.
// If the holder dies, the job gets SIGTERM.

#include "launcher/job/job_holder.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/text.h"
#include "launcher/job/job_run.h"
#include "launcher/protocol/frame.h"
#include "launcher/support/host_system.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/poller.h"

namespace dtrun::launcher {
namespace {

using base::JsonText;
using base::Text;
using nlohmann::json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// How long the output of an ended job may take to end.
constexpr milliseconds kLastOutput{1000};

bool IsTerminal(int file) { return isatty(file) != 0; }

bool IsSameTerminal(int one, int other) {
  struct stat a = {}, b = {};
  return IsTerminal(one) && IsTerminal(other) && fstat(one, &a) == 0 && fstat(other, &b) == 0 &&
         a.st_rdev == b.st_rdev;
}

// Whether a lost front may end the file: a terminal, pipe or connection.
bool MayBreak(int file) {
  struct stat status = {};
  return IsTerminal(file) ||
         (fstat(file, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode)));
}

class Holder {
 public:
  // Owns `listener`, and `connection` to the front.
  Holder(std::string name, std::chrono::seconds grace, int listener, int connection)
      : name_(std::move(name)), grace_(grace), listener_(listener), connection_(connection) {
    poller_.Watch(listener_, POLLIN, [this](short) { Accept(); });
    SetFront(connection_);
  }

  // Returns when the job has ended, and a front has its exit code or none has come in time.
  void Run(const std::function<int()>& work) {
    StartJob(work);
    Welcome(0);
    while (!is_over_) {
      poller_.Wait(Pause());
      for (const auto& stream : streams_) stream->Tick();
      if (front_ == nullptr && Clock::now() > lost_at_ + grace_) GiveUp();
      if (ended_at_) FinishIfPossible();
    }
  }

 private:
  // An output: the pipe or terminal between job and holder, and the file of the front.
  struct Channel {
    OutputPipe pipe;
    int to;
  };

  static Channel ChannelFor(int file) {
    winsize size = {};
    ioctl(file, TIOCGWINSZ, &size);
    return {IsTerminal(file) ? MakeTerminal(size.ws_col, size.ws_row) : MakePipe(), file};
  }

  void StartJob(const std::function<int()>& work) {
    std::vector<Channel> channels;
    int ends[] = {STDOUT_FILENO, STDERR_FILENO};
    const bool shared = IsSameTerminal(STDOUT_FILENO, STDERR_FILENO);
    for (int& end : ends) {
      const int file = end;
      if (!MayBreak(file)) continue;
      if (file == STDERR_FILENO && shared) {
        end = ends[0];
        continue;
      }
      channels.push_back(ChannelFor(file));
      end = channels.back().pipe.write;
    }
    const pid_t holder = getpid();
    job_ = fork();
    if (job_ == 0) {
      std::vector<int> of_holder = {listener_, connection_};
      for (const Channel& channel : channels)
        of_holder.insert(of_holder.end(), {channel.pipe.read, channel.pipe.write});
      BecomeJob(holder, ends, of_holder, work);
    }
    if (job_ < 0)
      throw LaunchError(ExitCode::kInternal, "cannot start a process" + ErrorWithLimit(errno));
    for (const Channel& channel : channels) {
      close(channel.pipe.write);
      const int to = fcntl(channel.to, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
      streams_.push_back(std::make_unique<HeldStream>(poller_, channel.pipe.read, to));
      places_.push_back(channel.to);
    }
    // A reader of the front's output sees its end when the streams are closed.
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null, file);
    close(null);
    // Service managers and schedulers send these signals to every process of a job.
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGPIPE, SIGTSTP})
      ::signal(signal, SIG_IGN);
    prctl(PR_SET_NAME, "dtrun-holder");
    const int process = static_cast<int>(syscall(SYS_pidfd_open, job_, 0));
    if (process < 0)
      throw LaunchError(ExitCode::kInternal, "cannot watch a process" + ErrorWithLimit(errno));
    poller_.Watch(process, POLLIN, [this, process](short) {
      poller_.Forget(process);
      waitpid(job_, &status_, 0);
      ended_at_ = Clock::now();
    });
  }

  // `of_holder`: files that the job would keep open if the holder dies.
  [[noreturn]] static void BecomeJob(
      pid_t holder, const int (&ends)[2], const std::vector<int>& of_holder,
      const std::function<int()>& work) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != holder) _exit(static_cast<int>(ExitCode::kInternal));
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, STDIN_FILENO);
    close(null);
    dup2(ends[0], STDOUT_FILENO);  // an end is its own stream, or a file above all streams
    dup2(ends[1], STDERR_FILENO);
    for (const int file : of_holder) close(file);
    setpgid(0, 0);
    prctl(PR_SET_NAME, "dtrun-job");
    exit(work());
  }

  void SetFront(int connection) {
    connection_ = connection;
    front_ = std::make_unique<FrameStream>(
        poller_, connection, connection, [this](const Frame& frame) { Obey(frame); },
        [this](const std::string&) { LoseFront(); });
  }

  void Welcome(int64_t lost_ms) {
    const json body = {{"pid", job_}, {"lost_ms", lost_ms}};
    front_->Send({FrameType::kHeld, -1, JsonText(body)});
  }

  void LoseFront() {
    front_.reset();
    lost_at_ = Clock::now();
    CloseFiles();
    for (const auto& stream : streams_) stream->LoseFront();
  }

  void Obey(const Frame& frame) {
    if (frame.type == FrameType::kContinue) UseFiles();
    if (frame.type != FrameType::kSignal) return;
    const auto signal = static_cast<int>(base::ParseInteger(frame.body).value_or(0));
    if (signal == SIGWINCH)
      for (const auto& stream : streams_) stream->CopySize();
    else if (!ended_at_)
      kill(job_, signal);
  }

  void Accept() {
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) return;
    if (front_ != nullptr && HasEnded(connection_)) LoseFront();  // not yet heard of
    std::vector<int> files;
    if (!WantsJob(connection, files) || front_ != nullptr) {
      for (const int file : files) close(file);
      if (front_ == nullptr) close(connection);
      if (front_ != nullptr) Refuse(connection);
      return;
    }
    SetFront(connection);
    const auto lost = std::chrono::duration_cast<milliseconds>(Clock::now() - lost_at_);
    Welcome(lost.count());
    files_ = std::move(files);
  }

  // The front has printed its line, so the job's output may follow.
  void UseFiles() {
    if (files_.empty()) return;
    for (size_t i = 0; i < streams_.size(); ++i)
      streams_[i]->SetFront(std::exchange(files_[static_cast<size_t>(places_[i] - 1)], -1));
    CloseFiles();
  }
  void CloseFiles() {
    for (const int file : files_)
      if (file >= 0) close(file);
    files_.clear();
  }

  static bool HasEnded(int connection) {
    pollfd end = {connection, 0, 0};
    return poll(&end, 1, 0) == 1 && (end.revents & POLLHUP) != 0;
  }

  // Whether the other side belongs to this user and has sent kAttach with its two output files.
  static bool WantsJob(int connection, std::vector<int>& files) {
    pollfd ready = {connection, POLLIN, 0};
    char bytes[256];
    if (TrustedPeer(connection) < 0 || poll(&ready, 1, 1000) != 1) return false;
    const ssize_t got = ReceiveWithFiles(connection, bytes, sizeof bytes, files);
    if (got <= 0 || files.size() != 2) return false;
    FrameReader reader;
    reader.Feed(bytes, static_cast<size_t>(got));
    try {
      const std::optional<Frame> frame = reader.Next();
      return frame && frame->type == FrameType::kAttach;
    } catch (const LaunchError&) {
      return false;
    }
  }

  void Refuse(int connection) const {
    const json body = {
        {"code", static_cast<int>(ExitCode::kUnavailable)},
        {"text", Text("--attach ", name_, ": the dtrun of this job still runs")}};
    const std::string bytes = Encode({FrameType::kRefused, -1, JsonText(body)});
    [[maybe_unused]] const ssize_t sent =
        send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    close(connection);
  }

  milliseconds Pause() const {
    for (const auto& stream : streams_)
      if (stream->is_broken()) return milliseconds(50);
    if (ended_at_) return milliseconds(20);
    return front_ != nullptr ? milliseconds(-1) : milliseconds(200);
  }

  // No front has come in time.
  void GiveUp() {
    if (ended_at_) is_over_ = true;
    if (ended_at_ || gave_up_) return;
    gave_up_ = true;
    kill(job_, SIGTERM);
    kill(job_, SIGCONT);
  }

  void FinishIfPossible() {
    if (Clock::now() > *ended_at_ + kLastOutput)
      for (const auto& stream : streams_) stream->EndIfIdle();
    const bool done = std::all_of(
        streams_.begin(), streams_.end(), [](const auto& stream) { return stream->is_done(); });
    if (front_ == nullptr || !done) return;
    const int code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
    front_->Send({FrameType::kCode, -1, Text(code)});
    front_->Flush();
    is_over_ = true;
  }

  std::string name_;
  std::chrono::seconds grace_;
  int listener_, connection_;  // the connection to the last front
  Poller poller_;
  std::unique_ptr<FrameStream> front_;  // null: lost
  Clock::time_point lost_at_ = {};
  std::vector<std::unique_ptr<HeldStream>> streams_;
  std::vector<int> places_;  // of each stream: STDOUT_FILENO or STDERR_FILENO
  std::vector<int> files_;   // stdout and stderr of a front that is about to take over
  pid_t job_ = -1;
  int status_ = 0;
  std::optional<Clock::time_point> ended_at_;  // the job
  bool gave_up_ = false, is_over_ = false;
};

}  // namespace

void HoldJob(
    const std::string& name, std::chrono::seconds grace, int listener, int connection,
    const std::function<int()>& work) {
  setsid();
  try {
    Holder(name, grace, listener, connection).Run(work);
    _exit(0);
  } catch (const std::exception& error) {
    Say(error.what());
    _exit(static_cast<int>(ExitCode::kInternal));
  }
}

}  // namespace dtrun::launcher
