#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "launcher/job/job_holder.h"
#include "launcher/protocol/job_folder.h"

namespace dtrun::launcher {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kAtOnce = 64 * 1024;
// A broken output is the loss of the front if the connection to the front ends within this time.
constexpr std::chrono::milliseconds kUntilLossIsSeen{300};

}  // namespace

Spool::~Spool() {
  if (file_ >= 0) close(file_);
}

bool Spool::Add(std::string_view bytes) {
  if (file_ < 0) file_ = open(FolderBase().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  const auto size = static_cast<ssize_t>(bytes.size());
  if (file_ < 0 || pwrite(file_, bytes.data(), bytes.size(), end_) != size) return false;
  end_ += size;
  return true;
}

std::string Spool::Take(size_t most) {
  std::string bytes(most, '\0');
  const ssize_t got = file_ < 0 ? 0 : pread(file_, bytes.data(), most, begin_);
  bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
  begin_ = got > 0 ? begin_ + got : end_;
  if (empty()) Clear();
  return bytes;
}

void Spool::Clear() {
  begin_ = end_;
  if (file_ >= 0 && ftruncate(file_, 0) == 0) begin_ = end_ = 0;
}

HeldStream::HeldStream(Poller& poller, int from, int to) : poller_(poller), from_(from), to_(to) {
  Update();
}

HeldStream::~HeldStream() {
  CloseFrom();
  CloseTo();
}

void HeldStream::LoseFront() {
  CloseTo();
  broken_at_.reset();
  Update();
}

void HeldStream::SetFront(int to) {
  CloseTo();
  to_ = to;
  CopySize();
  Update();
}

void HeldStream::CopySize() const {
  winsize size = {};
  if (ioctl(to_, TIOCGWINSZ, &size) == 0) ioctl(from_, TIOCSWINSZ, &size);
}

void HeldStream::Tick() {
  if (!broken_at_ || Clock::now() < *broken_at_ + kUntilLossIsSeen) return;
  broken_at_.reset();
  CloseTo();
  CloseFrom();
  queue_.clear();
  behind_spool_.clear();
  spool_.Clear();
}

void HeldStream::EndIfIdle() {
  int readable = 0;
  if (from_ >= 0 && !waits() && ioctl(from_, FIONREAD, &readable) == 0 && readable == 0)
    CloseFrom();
}

void HeldStream::CloseFrom() {
  if (from_ < 0) return;
  poller_.Forget(from_);
  close(std::exchange(from_, -1));
}

void HeldStream::CloseTo() {
  if (to_ < 0) return;
  poller_.Forget(to_);
  close(std::exchange(to_, -1));
}

// Without a front, all output goes to the spool. With one, output waits in the job once the queue
// is full; but behind a spool, it has to stay in order.
void HeldStream::Update() {
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

void HeldStream::Read() {
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
void HeldStream::Write() {
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

}  // namespace dtrun::launcher
