#include "launcher/engines/engine_messages.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {

bool IsIdleWarning(std::string_view line) {
  return line.find("plm:rsh: Warning: setpgid(") != std::string_view::npos ||
         line.starts_with("[warn] Epoll ");
}

EngineMessages::EngineMessages(Poller& poller, bool show_idle_warnings, Show show)
    : poller_(poller), show_idle_warnings_(show_idle_warnings), show_(std::move(show)) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw LaunchError(ExitCode::kInternal, base::Text("cannot make a pipe: ", strerror(errno)));
  reader_ = ends[0];
  writer_ = ends[1];
  fcntl(reader_, F_SETFL, O_NONBLOCK);
  SetPaused(false);
}

EngineMessages::~EngineMessages() {
  poller_.Forget(reader_);
  close(reader_);
  HandedOver();
}

void EngineMessages::HandedOver() {
  if (writer_ >= 0) close(std::exchange(writer_, -1));
}

void EngineMessages::SetPaused(bool paused) {
  if (paused || ended_) return poller_.Forget(reader_);
  poller_.Watch(reader_, POLLIN, [this](short) {
    ReadSome();
    ShowLines();
    if (ended_) poller_.Forget(reader_);
  });
}

void EngineMessages::Finish() {
  poller_.Forget(reader_);
  while (ReadSome()) ShowLines();
  if (!unfinished_.empty()) unfinished_ += '\n';
  ShowLines();
}

bool EngineMessages::ReadSome() {
  char bytes[4096];
  const ssize_t count = read(reader_, bytes, sizeof bytes);
  if (count < 0) return errno == EINTR;
  ended_ = count == 0;
  if (ended_) return false;
  unfinished_.append(bytes, static_cast<size_t>(count));
  return true;
}

void EngineMessages::ShowLines() {
  std::string shown;
  size_t begin = 0;
  for (size_t end; (end = unfinished_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string_view line(unfinished_.data() + begin, end + 1 - begin);
    if (show_idle_warnings_ || !IsIdleWarning(line)) shown += line;
  }
  unfinished_.erase(0, begin);
  if (unfinished_.size() >= kLongest) shown += std::exchange(unfinished_, "") + '\n';
  if (!shown.empty()) show_(shown);
}

}  // namespace dtrun::launcher
