// OutputLines turns the bytes of the ranks into whole lines. A Sink queues the lines until the
// stream is ready. The bytes also go to the files of the ranks. Output keeps the end of each rank's
// stderr for the failure report.

#include "launcher/output/output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/text.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::Text;

constexpr size_t kMostQueued = 1 << 20;
constexpr size_t kTail = 4096;  // bytes kept of a rank's stderr
constexpr long kSeen = 20;      // a line counts as visible until this many lines follow
constexpr int kNoRank = -1;

OutputTime Now() { return std::chrono::system_clock::now(); }

// "2026-11-21T10:04:04.123 "
std::string Stamp(OutputTime time) {
  const time_t seconds = std::chrono::system_clock::to_time_t(time);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch());
  tm local = {};
  localtime_r(&seconds, &local);
  char text[64];
  const size_t length = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &local);
  std::snprintf(text + length, sizeof text - length, ".%03d ", static_cast<int>(ms.count() % 1000));
  return text;
}

std::string FileOf(const std::string& folder, int rank, int stream) {
  return Text(folder, "/rank.", rank, stream == 1 ? "/stdout" : "/stderr");
}

void MakeFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const bool writable = !error && access(folder.c_str(), W_OK | X_OK) == 0;
  if (!writable)
    throw LaunchError(
        ExitCode::kNoResult, Text(
                                 "cannot write into the output folder ", folder, ": ",
                                 error ? error.message() : std::string(std::strerror(errno))));
  // In such a folder, another user could put links in place of the ranks' files.
  struct stat status = {};
  if (stat(folder.c_str(), &status) == 0 && (status.st_mode & S_IWOTH) != 0 &&
      status.st_uid != geteuid())
    throw LaunchError(
        ExitCode::kNoResult,
        Text(
            "the output folder ", folder, " belongs to user ", status.st_uid,
            " and everybody may write to it; expected a folder of your own, such as ", folder,
            "/logs"));
}

}  // namespace

Sink::Sink(Poller& poller, int file, std::function<void()> on_broken)
    : poller_(poller), file_(file), on_broken_(std::move(on_broken)) {}

Sink::~Sink() { poller_.Forget(file_); }

void Sink::Write(std::string_view text) {
  if (broken_ || text.empty()) return;
  queue_ += text;
  line_ended_ = text.ends_with('\n');
  // For a regular file, poll reports POLLOUT at once.
  poller_.Watch(file_, POLLOUT, [this](short) { WriteSome(); });
}

// stdout stays blocking, because dtrun shares it with other processes. A pipe that is ready takes
// PIPE_BUF bytes without blocking.
void Sink::WriteSome() {
  struct stat status;
  const bool file = fstat(file_, &status) == 0 && S_ISREG(status.st_mode);
  const size_t most = file ? kMostQueued : 4096;
  if (status_ != nullptr) status_->Hide();
  const ssize_t written = write(file_, queue_.data(), std::min(queue_.size(), most));
  if (status_ != nullptr && written > 0)
    status_->Show(queue_[static_cast<size_t>(written) - 1] == '\n');
  if (written < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (written < 0) {
    const int error = errno;
    broken_ = true;
    queue_.clear();
    poller_.Forget(file_);
    if (error == EPIPE) return on_broken_();
    error_ = std::strerror(error);
    return;
  }
  queue_.erase(0, static_cast<size_t>(written));
  if (queue_.empty()) poller_.Forget(file_);
}

void Sink::SetStatusLine(StatusLine* line) {
  if (isatty(file_) != 0) status_ = line;
}

void Sink::Drain() {
  while (!queue_.empty()) {
    pollfd ready = {file_, POLLOUT, 0};
    if (poll(&ready, 1, -1) > 0) WriteSome();
  }
}

Output::Output(
    Poller& poller, const OutputOptions& options, std::vector<base::HostSlots> hosts,
    std::function<void()> on_broken)
    : options_(options),
      hosts_(std::move(hosts)),
      out_(PrefixOf("stdout")),
      err_(PrefixOf("stderr")),
      out_sink_(poller, STDOUT_FILENO, on_broken),
      err_sink_(poller, STDERR_FILENO, on_broken) {
  if (!options_.folder.empty()) MakeFolder(options_.folder);
}

Output::~Output() {
  for (const auto& [source, file] : files_) close(file);
}

OutputLines::Prefix Output::PrefixOf(const char* stream) const {
  return [this, stream](int rank, OutputTime time) -> std::string {
    if (rank == kNoRank) return "";
    std::string prefix = options_.timestamps ? Stamp(time) : "";
    const auto host = static_cast<size_t>(base::HostOfRank(hosts_, rank));
    if (options_.tag == Tag::kRank) prefix += Text("[1,", rank, "]<", stream, ">:");
    if (options_.tag == Tag::kHost)
      prefix += Text("[", hosts_[host].name, ",", rank, "]<", stream, ">:");
    return prefix;
  };
}

bool Output::IsShown(int rank) const {
  const std::vector<int>& ranks = options_.ranks;
  return ranks.empty() || std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// The output of a single rank passes unchanged, because no other rank writes between its lines.
bool Output::IsRaw() const {
  return options_.tag == Tag::kNone && !options_.timestamps && base::RankCount(hosts_) == 1;
}

void Output::Write(int rank, int stream, std::string_view bytes) {
  Keep(rank, stream, bytes);
  if (stream == 2) {
    std::string& tail = tails_[rank];
    tail += bytes;
    if (tail.size() > 2 * kTail) tail.erase(0, tail.size() - kTail);
  }
  if (!IsShown(rank)) return;
  if (stream == 2) {
    shown_lines_ += std::count(bytes.begin(), bytes.end(), '\n');
    last_shown_[rank] = shown_lines_;
  }
  Sink& sink = stream == 1 ? out_sink_ : err_sink_;
  sink.Write(IsRaw() ? std::string(bytes) : (stream == 1 ? out_ : err_).Add(rank, bytes, Now()));
}

void Output::End(int rank, int stream) {
  (stream == 1 ? out_sink_ : err_sink_).Write((stream == 1 ? out_ : err_).End(rank));
  const auto file = files_.find({rank, stream});
  if (file == files_.end()) return;
  close(file->second);
  files_.erase(file);
}

void Output::WriteOthers(std::string_view lines) {
  shown_lines_ += std::count(lines.begin(), lines.end(), '\n');
  if (!IsRaw()) return err_sink_.Write(err_.Add(kNoRank, lines, Now()));
  if (!err_sink_.line_ended()) err_sink_.Write("\n");
  err_sink_.Write(lines);
}

void Output::Expire() {
  out_sink_.Write(out_.Expire(Now()));
  err_sink_.Write(err_.Expire(Now()));
  SayStreamError();
}

std::string Output::stream_error() const {
  if (!out_sink_.error().empty()) return "cannot write to stdout: " + out_sink_.error();
  if (!err_sink_.error().empty()) return "cannot write to stderr: " + err_sink_.error();
  return "";
}

// Reports the error at once: during a long job, the user may still save the rest of the output
// elsewhere.
void Output::SayStreamError() {
  if (said_stream_error_ || out_sink_.error().empty()) return;
  said_stream_error_ = true;
  WriteOthers(
      Text("dtrun: ", stream_error(), "; the rest of what the ranks write there is lost\n"));
}

bool Output::SetStatus(const std::string& text) {
  if (isatty(STDERR_FILENO) == 0) return false;
  if (status_ == nullptr) {
    status_ = std::make_unique<StatusLine>(STDERR_FILENO);
    out_sink_.SetStatusLine(status_.get());
    err_sink_.SetStatusLine(status_.get());
  }
  status_->Set(text);
  return true;
}

bool Output::Note(const std::string& text) {
  if (!err_sink_.line_ended()) return false;
  err_sink_.Write(Text("dtrun: ", text, '\n'));
  return true;
}

bool Output::full() const {
  return out_sink_.queued() > kMostQueued || err_sink_.queued() > kMostQueued;
}

void Output::Drain() {
  out_sink_.Drain();
  SayStreamError();
  err_sink_.Drain();
}

// If a file cannot be written, as on a full disk, the job continues.
void Output::Keep(int rank, int stream, std::string_view bytes) {
  if (options_.folder.empty() || !file_error_.empty()) return;
  const std::string path = FileOf(options_.folder, rank, stream);
  auto [file, is_new] = files_.try_emplace({rank, stream}, -1);
  if (is_new) {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    file->second = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
  }
  if (file->second < 0) {
    file_error_ = Text("cannot write ", path, ": ", std::strerror(errno));
    return;
  }
  while (!bytes.empty()) {
    const ssize_t written = write(file->second, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      file_error_ = Text("cannot write ", path, ": ", std::strerror(errno));
      return;
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

bool Output::ShowsEndOf(int rank) const {
  const auto shown = last_shown_.find(rank);
  return shown != last_shown_.end() && shown_lines_ - shown->second < kSeen;
}

std::string Output::LastLines(int rank) const {
  constexpr int kLines = 10;
  const auto found = tails_.find(rank);
  if (found == tails_.end()) return "";
  std::string_view tail = found->second;
  while (tail.ends_with('\n')) tail.remove_suffix(1);
  size_t begin = tail.size();
  for (int lines = 0; lines < kLines && begin != std::string_view::npos && begin > 0; ++lines)
    begin = tail.rfind('\n', begin - 1);
  return std::string(begin == std::string_view::npos ? tail : tail.substr(begin + 1));
}

namespace {

constexpr char kClear[] = "\r\x1b[K";

size_t ColumnsOf(int terminal) {
  winsize size = {};
  return ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80u;
}

bool Write(int terminal, const std::string& text) {
  pollfd ready = {terminal, POLLOUT, 0};
  if (poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) return false;
  return write(terminal, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

}  // namespace

void StatusLine::Set(const std::string& text) {
  text_ = text;
  if (may_show_) Draw();
}

void StatusLine::Hide() {
  if (shown_) Write(terminal_, kClear);
  shown_ = false;
}

void StatusLine::Show(bool line_ended) {
  may_show_ = line_ended;
  if (may_show_) Draw();
}

// The last column stays empty, because the cursor would go to the next line.
void StatusLine::Draw() {
  if (text_.empty()) return Hide();
  shown_ |= Write(terminal_, kClear + text_.substr(0, ColumnsOf(terminal_) - 1));
}

}  // namespace dtrun::launcher
