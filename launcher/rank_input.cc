#include "launcher/rank_input.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "launcher/launch_error.h"

namespace dtrun::launcher {

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

// Without events, the end of the last reader is still seen.
void RankInput::Update() {
  if (at_end_ && queue_.empty()) return CloseWriter();
  poller_.Watch(writer_, queue_.empty() ? 0 : POLLOUT, [this](short) { Write(); });
}

void RankInput::Write() {
  const ssize_t written = write(writer_, queue_.data(), queue_.size());
  if (written < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const size_t taken = written < 0 ? queue_.size() : static_cast<size_t>(written);
  queue_.erase(0, taken);
  // Of no bytes, write does not say whether somebody could read them.
  if (written <= 0) CloseWriter();
  if (written > 0) Update();
  on_taken_(taken, written > 0);
}

}  // namespace dtrun::launcher
