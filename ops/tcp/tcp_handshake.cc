#include "ops/tcp/tcp_handshake.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/hmac_sha256.h"
#include "ops/bootstrap/tcp_socket.h"

namespace dtrun::ops::tcp {
namespace {

constexpr char kMark[] = "dtrunTCP1";
constexpr size_t kMarkBytes = sizeof kMark - 1, kRandomBytes = 32, kProofBytes = 32;
constexpr size_t kHelloBytes = kMarkBytes + 2 * sizeof(int32_t) + kRandomBytes;
constexpr size_t kAnswerBytes = kRandomBytes + kProofBytes;

enum class Io { kAgain, kDone, kEnded };

Io SendRest(int socket, const std::string& out, size_t& sent) {
  while (sent < out.size()) {
    const ssize_t some =
        ::send(socket, out.data() + sent, out.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (some >= 0) {
      sent += static_cast<size_t>(some);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return Io::kAgain;
    } else if (errno != EINTR) {
      return Io::kEnded;
    }
  }
  return Io::kDone;
}

// Reads until `in` has `bytes` bytes, and no byte more.
Io ReceiveUntil(int socket, std::string& in, size_t bytes) {
  while (in.size() < bytes) {
    char buffer[kHelloBytes + kAnswerBytes];
    const ssize_t some = ::recv(socket, buffer, bytes - in.size(), MSG_DONTWAIT);
    if (some > 0) {
      in.append(buffer, static_cast<size_t>(some));
    } else if (some == 0) {
      errno = 0;
      return Io::kEnded;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return Io::kAgain;
    } else if (errno != EINTR) {
      return Io::kEnded;
    }
  }
  return Io::kDone;
}

std::string Number(int32_t value) { return {reinterpret_cast<const char*>(&value), sizeof value}; }

int32_t NumberAt(const std::string& bytes, size_t at) {
  int32_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::string ServerProof(const std::string& key, const std::string& both) {
  return base::HmacSha256(key, "server " + both);
}
std::string ClientProof(const std::string& key, const std::string& both) {
  return base::HmacSha256(key, "client " + both);
}

}  // namespace

ClientHandshake::ClientHandshake(const std::string& key, int self, int peer)
    : key_(key), hello_(kMark + Number(self) + Number(peer) + RandomBytes()), out_(hello_) {}

ClientHandshake::State ClientHandshake::Continue(int socket) {
  const auto state = [](Io io) { return io == Io::kAgain ? State::kUnderWay : State::kEnded; };
  if (const Io io = SendRest(socket, out_, sent_); io != Io::kDone) return state(io);
  if (const Io io = ReceiveUntil(socket, in_, proven_ ? 1 : kAnswerBytes); io != Io::kDone)
    return state(io);
  if (proven_) return in_[0] != 0 ? State::kTaken : State::kRefused;
  const std::string both = hello_ + in_.substr(0, kRandomBytes);
  if (!base::EqualInConstantTime(in_.substr(kRandomBytes), ServerProof(key_, both)))
    return State::kWrong;
  proven_ = true;
  out_ = ClientProof(key_, both);
  sent_ = 0;
  in_.clear();
  return Continue(socket);
}

ServerHandshake::ServerHandshake(const std::string& key, int self, int ranks)
    : key_(key), self_(self), ranks_(ranks) {}

ServerHandshake::State ServerHandshake::Continue(int socket) {
  const auto state = [](Io io) { return io == Io::kAgain ? State::kUnderWay : State::kEnded; };
  if (peer_ < 0) {
    const Io io = ReceiveUntil(socket, in_, kHelloBytes);
    // Bytes of other programs end the connection at once.
    const size_t known = std::min(in_.size(), kMarkBytes);
    if (in_.compare(0, known, kMark, known) != 0) return State::kEnded;
    if (io != Io::kDone) return state(io);
    const int peer = NumberAt(in_, kMarkBytes);
    const int called = NumberAt(in_, kMarkBytes + sizeof(int32_t));
    if (peer < 0 || peer >= ranks_ || peer == self_ || called != self_) return State::kEnded;
    peer_ = peer;
    out_ = RandomBytes();
    both_ = in_ + out_;
    out_ += ServerProof(key_, both_);
    in_.clear();
  }
  if (const Io io = SendRest(socket, out_, sent_); io != Io::kDone) return state(io);
  if (const Io io = ReceiveUntil(socket, in_, kProofBytes); io != Io::kDone) return state(io);
  return base::EqualInConstantTime(in_, ClientProof(key_, both_)) ? State::kProven : State::kEnded;
}

bool ServerHandshake::Tell(int socket, bool takes) {
  const char verdict = takes ? 1 : 0;
  return ::send(socket, &verdict, 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

}  // namespace dtrun::ops::tcp
