#include "ops/local_socket.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::ops {
namespace {

constexpr uint32_t kMark = 0x6e757274;  // another program's bytes do not begin like this
constexpr uint64_t kChunk = 64 << 10;  // memory grows with what has come, not with what is promised

struct Header {
  uint32_t mark, kind;
  int32_t number, unused;
  uint64_t bytes;
};

bool IsGone(int error) { return error == ECONNRESET || error == EPIPE; }

}  // namespace

LocalAddress::LocalAddress(const std::string& name) {
  address_.sun_family = AF_UNIX;
  // The leading zero byte makes the name abstract.
  std::memcpy(
      address_.sun_path + 1, name.data(), std::min(name.size(), sizeof address_.sun_path - 1));
  length_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

std::optional<pid_t> TrustedPeer(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  const bool known = ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0;
  return known && peer.uid == ::geteuid() ? std::optional(peer.pid) : std::nullopt;
}

bool AwaitReady(int fd, short events, Deadline deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd poll_fd{fd, events, 0};
    const int64_t most = 1'000'000;
    const int ready = ::poll(&poll_fd, 1, static_cast<int>(std::min<int64_t>(left.count(), most)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) ThrowErrno("poll");
  }
}

LocalFrameReader::State LocalFrameReader::Read(int socket) {
  if (whole_) {
    whole_ = false;
    header_.clear();
    frame_ = {};
  }
  for (;;) {
    const bool in_header = header_.size() < sizeof(Header);
    std::string& target = in_header ? header_ : frame_.bytes;
    const uint64_t wanted =
        in_header ? sizeof(Header) - header_.size() : std::min(missing_, kChunk);
    if (wanted > 0) {
      const size_t had = target.size();
      target.resize(had + wanted);
      const ssize_t got = ::recv(socket, target.data() + had, wanted, MSG_DONTWAIT);
      const int error = errno;
      target.resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
      if (got == 0 || (got < 0 && IsGone(error))) return State::kEnded;
      if (got < 0 && error == EINTR) continue;
      if (got < 0 && (error == EAGAIN || error == EWOULDBLOCK)) return State::kPartial;
      errno = error;
      if (got < 0) ThrowErrno("recv from a rank of this host");
      if (!in_header) missing_ -= static_cast<uint64_t>(got);
    }
    if (in_header) {
      if (header_.size() < sizeof(Header)) continue;
      Header header;
      std::memcpy(&header, header_.data(), sizeof header);
      if (header.mark != kMark || header.bytes > most_bytes_)
        throw Error(
            ErrorCode::kSystem, base::Text(
                                    "what came from a rank of this host is no message, or one of "
                                    "more than ",
                                    most_bytes_, " bytes"));
      frame_.kind = header.kind;
      frame_.number = header.number;
      missing_ = header.bytes;
    }
    if (missing_ > 0) continue;
    whole_ = true;
    return State::kWhole;
  }
}

bool SendFrame(int socket, const LocalFrame& frame, Deadline deadline, const std::string& to) {
  const Header header{kMark, frame.kind, frame.number, 0, frame.bytes.size()};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes += frame.bytes;
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t some =
        ::send(socket, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (some >= 0) {
      sent += static_cast<size_t>(some);
    } else if (IsGone(errno)) {
      return false;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!AwaitReady(socket, POLLOUT, deadline))
        throw Error(ErrorCode::kTimeout, base::Text("waited too long for ", to, " during Init"));
    } else if (errno != EINTR) {
      ThrowErrno("send to " + to);
    }
  }
  return true;
}

}  // namespace dtrun::ops
