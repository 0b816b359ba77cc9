#include "launcher/frame_stream.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "launcher/launch_error.h"

namespace dtrun::launcher {
namespace {

void MakeNonBlocking(int file) { fcntl(file, F_SETFL, fcntl(file, F_GETFL) | O_NONBLOCK); }

}  // namespace

FrameStream::FrameStream(
    Poller& poller, int in, int out, std::function<void(const Frame&)> on_frame,
    std::function<void(const std::string&)> on_end)
    : poller_(poller),
      in_(in),
      out_(out),
      on_frame_(std::move(on_frame)),
      on_end_(std::move(on_end)) {
  MakeNonBlocking(in_);
  MakeNonBlocking(out_);
  Update();
}

FrameStream::~FrameStream() {
  poller_.Forget(in_);
  poller_.Forget(out_);
  close(in_);
  if (out_ != in_) close(out_);
}

void FrameStream::Send(const Frame& frame) {
  if (ended_) return;
  queue_ += Encode(frame);
  Update();
}

void FrameStream::SetPaused(bool paused) {
  paused_ = paused;
  Update();
}

// A pipe has an end to read from and another to write to, a socket has one for both.
void FrameStream::Update() {
  const short in = ended_ || paused_ ? 0 : POLLIN;
  const short out = ended_ || queue_.empty() ? 0 : POLLOUT;
  if (ended_) {
    poller_.Forget(in_);
    poller_.Forget(out_);
  } else if (in_ == out_) {
    poller_.Watch(in_, static_cast<short>(in | out), [this](short ready) {
      if ((ready & POLLOUT) != 0) Write();
      if (!ended_ && (ready & ~POLLOUT) != 0) Read();
    });
  } else {
    poller_.Watch(in_, in, [this](short) { Read(); });
    if (out != 0) poller_.Watch(out_, out, [this](short) { Write(); });
    if (out == 0) poller_.Forget(out_);
  }
}

void FrameStream::Read() {
  char bytes[65536];
  const ssize_t got = read(in_, bytes, sizeof bytes);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return End(reader_.in_frame() ? "it ended in the middle of a message" : "");
  reader_.Feed(bytes, static_cast<size_t>(got));
  try {
    while (const std::optional<Frame> frame = reader_.Next()) on_frame_(*frame);
  } catch (const LaunchError& error) {
    End(error.what());
  }
}

void FrameStream::Write() {
  const ssize_t written = write(out_, queue_.data(), queue_.size());
  if (written < 0) {
    if (errno != EAGAIN && errno != EINTR) End("");
    return;
  }
  queue_.erase(0, static_cast<size_t>(written));
  Update();
}

void FrameStream::Flush() {
  while (!ended_ && !queue_.empty()) {
    pollfd ready = {out_, POLLOUT, 0};
    if (poll(&ready, 1, 1000) <= 0) return;
    Write();
  }
}

void FrameStream::End(const std::string& why) {
  if (ended_) return;
  ended_ = true;
  queue_.clear();
  Update();
  on_end_(why);
}

}  // namespace dtrun::launcher
