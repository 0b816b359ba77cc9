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
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/text.h"
#include "launcher/job/job_run.h"
#include "launcher/protocol/frame.h"
#include "launcher/protocol/job_folder.h"
#include "launcher/support/host_system.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/poller.h"

namespace dtrun::launcher {
namespace {

using base::Text;
using nlohmann::json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kAtOnce = 64 * 1024;
// A broken output is the loss of the front if the connection to the front ends within this time.
constexpr milliseconds kUntilLossIsSeen{300};
// How long the output of an ended job may take to end.
constexpr milliseconds kLastOutput{1000};
// How long a job may take to stop its ranks and itself.
constexpr milliseconds kUntilStopped{2500};

// ---- Names --------------------------------------------------------------------------------------

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

// ---- The front ----------------------------------------------------------------------------------

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
    const json body = json::parse(frame.body);
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

// ---- The holder ---------------------------------------------------------------------------------

// Bytes kept on the disk until somebody reads them.
class Spool {
 public:
  Spool() = default;
  ~Spool() {
    if (file_ >= 0) close(file_);
  }
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  bool empty() const { return begin_ == end_; }
  // Returns false if there is no room.
  bool Add(std::string_view bytes) {
    if (file_ < 0) file_ = open(FolderBase().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    const auto size = static_cast<ssize_t>(bytes.size());
    if (file_ < 0 || pwrite(file_, bytes.data(), bytes.size(), end_) != size) return false;
    end_ += size;
    return true;
  }
  std::string Take(size_t most) {
    std::string bytes(most, '\0');
    const ssize_t got = file_ < 0 ? 0 : pread(file_, bytes.data(), most, begin_);
    bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
    begin_ = got > 0 ? begin_ + got : end_;
    if (empty()) Clear();
    return bytes;
  }
  void Clear() {
    begin_ = end_;
    if (file_ >= 0 && ftruncate(file_, 0) == 0) begin_ = end_ = 0;
  }

 private:
  int file_ = -1;
  off_t begin_ = 0, end_ = 0;
};

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

// One output stream of the job, on its way to the front's file.
class HeldStream {
 public:
  // Owns `from`, the read end, and `to`, the front's file.
  HeldStream(Poller& poller, int from, int to) : poller_(poller), from_(from), to_(to) { Update(); }
  ~HeldStream() {
    CloseFrom();
    CloseTo();
  }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;

  // The job has ended the stream, and all of it was written.
  bool is_done() const { return from_ < 0 && !waits(); }

  void LoseFront() {
    CloseTo();
    broken_at_.reset();
    Update();
  }
  // Owns `to`.
  void SetFront(int to) {
    CloseTo();
    to_ = to;
    CopySize();
    Update();
  }

  // A reader that has gone while the front runs, as in dtrun ... | head: the job learns of it.
  void Tick() {
    if (!broken_at_ || Clock::now() < *broken_at_ + kUntilLossIsSeen) return;
    broken_at_.reset();
    CloseTo();
    CloseFrom();
    queue_.clear();
    behind_spool_.clear();
    spool_.Clear();
  }
  bool is_broken() const { return broken_at_.has_value(); }

  void CopySize() const {
    winsize size = {};
    if (ioctl(to_, TIOCGWINSZ, &size) == 0) ioctl(from_, TIOCSWINSZ, &size);
  }
  void CloseFrom() {
    if (from_ >= 0) poller_.Forget(from_);
    if (from_ >= 0) close(std::exchange(from_, -1));
  }

 private:
  bool waits() const { return !queue_.empty() || !spool_.empty() || !behind_spool_.empty(); }

  void CloseTo() {
    if (to_ < 0) return;
    poller_.Forget(to_);
    close(std::exchange(to_, -1));
  }

  // Without a front, all output goes to the spool. With one, output waits in the job once the queue
  // is full; but behind a spool, it has to stay in order.
  void Update() {
    if (to_ >= 0 && waits() && !broken_at_)
      poller_.Watch(to_, POLLOUT, [this](short) { Write(); });
    else if (to_ >= 0)
      poller_.Forget(to_);
    if (from_ < 0) return;
    if (!behind_spool_.empty() || (to_ >= 0 && spool_.empty() && !queue_.empty()))
      poller_.Forget(from_);
    else
      poller_.Watch(from_, POLLIN, [this](short) { Read(); });
  }

  void Read() {
    std::string bytes(kAtOnce, '\0');
    const ssize_t got = read(from_, bytes.data(), bytes.size());
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (got <= 0) {  // a terminal without a writer gives EIO
      CloseFrom();
      return Update();
    }
    bytes.resize(static_cast<size_t>(got));
    if (to_ >= 0 && spool_.empty() && queue_.empty())
      queue_ = std::move(bytes);
    else if (!spool_.Add(bytes))
      behind_spool_ = std::move(bytes);
    Update();
  }

  // The file stays blocking, because the front shares it with other processes. A pipe that is ready
  // takes PIPE_BUF bytes without blocking.
  void Write() {
    if (queue_.empty()) queue_ = spool_.Take(kAtOnce);
    if (queue_.empty()) queue_ = std::exchange(behind_spool_, "");
    const ssize_t written = write(to_, queue_.data(), std::min<size_t>(queue_.size(), 4096));
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (written < 0)
      broken_at_ = Clock::now();
    else
      queue_.erase(0, static_cast<size_t>(written));
    Update();
  }

  Poller& poller_;
  int from_, to_;  // -1: none
  // In the order in which they go out. The last one has bytes only if the disk is full.
  std::string queue_;
  Spool spool_;
  std::string behind_spool_;
  std::optional<Clock::time_point> broken_at_;
};

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
  // What the job and the holder have of an output: the job's end, and the file of the front.
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
    // Whoever reads the front's output sees its end when the streams are closed.
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
    front_ = std::make_unique<FrameStream>(
        poller_, connection, connection, [this](const Frame& frame) { Obey(frame); },
        [this](const std::string&) { LoseFront(); });
  }

  void Welcome(int64_t lost_ms) {
    const json body = {{"pid", job_}, {"lost_ms", lost_ms}};
    front_->Send({FrameType::kHeld, -1, body.dump()});
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

  // The front has said what it has to say, so the job's output may follow.
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
    const std::string bytes = Encode({FrameType::kRefused, -1, body.dump()});
    [[maybe_unused]] const ssize_t sent =
        send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    close(connection);
  }

  milliseconds Pause() const {
    for (const auto& stream : streams_)
      if (stream->is_broken()) return kUntilLossIsSeen / 4;
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
      for (const auto& stream : streams_) stream->CloseFrom();
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
  int listener_, connection_;  // the connection to the first front
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
    setsid();
    close(channel[0]);
    try {
      Holder(name, grace, listener, channel[1]).Run(work);
      _exit(0);
    } catch (const std::exception& error) {
      Say(error.what());
      _exit(static_cast<int>(ExitCode::kInternal));
    }
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
