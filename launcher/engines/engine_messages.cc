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

EngineMessages::EngineMessages(
    Poller& poller, const LaunchEngine& engine, bool show_idle_warnings, Show show)
    : poller_(poller),
      engine_(engine),
      show_idle_warnings_(show_idle_warnings),
      show_(std::move(show)) {
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

void EngineMessages::Update() {
  while (ReadSome()) ShowLines();
}

void EngineMessages::Finish() {
  poller_.Forget(reader_);
  Update();
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

void EngineMessages::Sort(std::string_view line, std::string& shown) {
  const EngineLine kind = engine_.Sort(line);
  if (kind == EngineLine::kFence) in_fences_ = !in_fences_;
  switch (in_fences_ && kind == EngineLine::kWords ? EngineLine::kFence : kind) {
    case EngineLine::kFence:
    case EngineLine::kIdleWarning:
      if (show_idle_warnings_) shown += line;
      break;
    case EngineLine::kEvent:
      events_ += line;
      if (events_.size() > kMostEvents) events_.erase(0, events_.size() - kMostEvents);
      break;
    case EngineLine::kWords: shown += line; break;
  }
}

void EngineMessages::ShowLines() {
  std::string shown;
  size_t begin = 0;
  for (size_t end; (end = unfinished_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    Sort({unfinished_.data() + begin, end + 1 - begin}, shown);
  }
  unfinished_.erase(0, begin);
  if (unfinished_.size() >= kLongest) shown += std::exchange(unfinished_, "") + '\n';
  if (!shown.empty()) show_(shown);
}

}  // namespace dtrun::launcher
