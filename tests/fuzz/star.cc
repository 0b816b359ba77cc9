// The frames between the ranks of a star. The same bytes give the same frames for every split of
// the input. Sending the frames restores the bytes. A frame that claims to be too large takes no
// memory. A sealed stream takes no bytes of a process without the key.

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "ops/bootstrap/star_bootstrap.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

namespace {

constexpr uint64_t kMostBytes = 4096;

struct Ends {
  ops::FileDescriptor ours, theirs;
};

Ends Connect() {
  int files[2];
  fuzz::Expect(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, files) == 0);
  return {ops::FileDescriptor(files[0]), ops::FileDescriptor(files[1])};
}

// The frames before the first invalid bytes.
std::vector<ops::Frame> FramesOf(const std::string& bytes, size_t piece, bool sealed) {
  std::vector<ops::Frame> frames;
  Ends ends = Connect();
  ops::FrameStream stream(std::move(ends.ours), kMostBytes, "a rank");
  if (sealed) stream.Seal("one key", "another key");
  fuzz::TakesOrRefuses([&] {
    for (size_t begin = 0; begin < bytes.size(); begin += piece) {
      const size_t count = std::min(piece, bytes.size() - begin);
      // The stream reads at once, so a piece always fits into the buffer of the socket.
      fuzz::Expect(
          ::send(ends.theirs.get(), bytes.data() + begin, count, MSG_NOSIGNAL) ==
          static_cast<ssize_t>(count));
      while (stream.Read() == ops::FrameStream::State::kWhole)
        frames.push_back(std::move(stream.frame()));
    }
  });
  return frames;
}

std::string Sent(const std::vector<ops::Frame>& frames) {
  Ends ends = Connect();
  ops::FrameStream stream(std::move(ends.ours), kMostBytes, "a rank");
  std::string bytes;
  for (const ops::Frame& frame : frames) {
    stream.Send(frame);
    while (stream.sending()) {
      char part[1024];
      fuzz::Expect(stream.Flush());
      const ssize_t got = ::recv(ends.theirs.get(), part, sizeof part, 0);
      if (got > 0) bytes.append(part, static_cast<size_t>(got));
    }
    char rest[2 * kMostBytes];
    const ssize_t got = ::recv(ends.theirs.get(), rest, sizeof rest, 0);
    if (got > 0) bytes.append(rest, static_cast<size_t>(got));
  }
  return bytes;
}

// The header has four unused bytes, which a reader ignores.
constexpr size_t kHeaderBytes = 24, kUnused = 12;

void ClearUnused(std::string& bytes) {
  for (size_t at = 0; at + kHeaderBytes <= bytes.size();) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data() + at + 16, sizeof length);
    std::memset(bytes.data() + at + kUnused, 0, 4);
    if (length > bytes.size()) return;
    at += kHeaderBytes + length;
  }
}

}  // namespace

FUZZ_TARGET(star) {
  if (size == 0 || size > 100'000) return 0;
  std::string bytes = fuzz::TextOf(data + 1, size - 1);
  const auto frames = FramesOf(bytes, bytes.size() + 1, false);
  const std::string sent = Sent(frames);
  fuzz::Expect(Sent(FramesOf(bytes, data[0] % 64 + size_t{1}, false)) == sent);
  ClearUnused(bytes);
  fuzz::Expect(bytes.compare(0, sent.size(), sent) == 0);
  fuzz::Expect(FramesOf(bytes, bytes.size() + 1, true).empty());
  return 0;
}
