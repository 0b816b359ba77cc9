#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/text.h"
#include "launcher/agent/host_ranks.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {

RankStreams::RankStreams(Poller& poller, std::function<void(Frame)> send)
    : poller_(poller), send_(std::move(send)) {}

RankStreams::~RankStreams() {
  for (const auto& [file, stream] : streams_) {
    poller_.Forget(file);
    close(file);
  }
}

void RankStreams::Adopt(int file, int rank, int number) {
  streams_[file] = {rank, number};
  if (!paused_) poller_.Watch(file, POLLIN, [this, file](short) { Pass(file); });
}

void RankStreams::SetPaused(bool paused) {
  if (paused == paused_) return;
  paused_ = paused;
  for (const auto& [file, stream] : streams_) {
    if (paused) poller_.Forget(file);
    if (!paused) poller_.Watch(file, POLLIN, [this, file = file](short) { Pass(file); });
  }
}

// A terminal reports its end as a read error.
void RankStreams::Pass(int file) {
  const Stream stream = streams_.at(file);
  std::string bytes(1 + 65536, static_cast<char>(stream.number));
  const ssize_t got = read(file, bytes.data() + 1, bytes.size() - 1);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  bytes.resize(got <= 0 ? 1 : static_cast<size_t>(got) + 1);
  send_({FrameType::kOutput, stream.rank, std::move(bytes)});
  if (got > 0) return;
  poller_.Forget(file);
  close(file);
  streams_.erase(file);
}

RankInput::RankInput(Poller& poller, std::function<void(size_t, bool)> on_taken)
    : poller_(poller), on_taken_(std::move(on_taken)) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw LaunchError(
        ExitCode::kInternal, base::Text("cannot make a pipe: ", std::strerror(errno)));
  reader_ = ends[0];
  writer_ = ends[1];
  fcntl(writer_, F_SETFL, O_NONBLOCK);
  Update();
}

RankInput::~RankInput() {
  CloseReader();
  CloseWriter();
}

void RankInput::CloseReader() {
  if (reader_ >= 0) close(reader_);
  reader_ = -1;
}

void RankInput::CloseWriter() {
  if (writer_ < 0) return;
  poller_.Forget(writer_);
  close(writer_);
  writer_ = -1;
}

void RankInput::Add(std::string_view bytes) {
  if (writer_ < 0) return;
  at_end_ = at_end_ || bytes.empty();
  queue_ += bytes;
  Update();
}

// Without events, poll still reports that the last reader is gone.
void RankInput::Update() {
  if (at_end_ && queue_.empty()) return CloseWriter();
  poller_.Watch(writer_, queue_.empty() ? 0 : POLLOUT, [this](short) { Write(); });
}

void RankInput::Write() {
  const ssize_t written = write(writer_, queue_.data(), queue_.size());
  if (written < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const size_t taken = written < 0 ? queue_.size() : static_cast<size_t>(written);
  queue_.erase(0, taken);
  // With an empty queue, poll has reported an error, but a write of no bytes does not fail.
  if (written <= 0) CloseWriter();
  if (written > 0) Update();
  on_taken_(taken, written > 0);
}

}  // namespace dtrun::launcher
