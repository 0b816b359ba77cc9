#include "launcher/rank_streams.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

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

// A terminal whose other end is closed fails to be read.
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

}  // namespace dtrun::launcher
