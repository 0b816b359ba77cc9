// A message is a header and the bytes after it. Receive reads the header first, and then the bytes,
// either into the target's pieces or into the text. It stops when the socket has no more bytes, and
// continues there at the next call. Flush sends the queued messages in the same manner.

#include "runtime/parameter_server/message_stream.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "base/hmac_sha256.h"
#include "base/text.h"
#include "base/version.h"
#include "dtrun/error.h"
#include "ops/bootstrap/local_socket.h"

namespace dtrun::runtime {

std::string ServerJob::Name(int of_rank) const {
  const std::string& host =
      host_names[static_cast<size_t>(host_of_rank[static_cast<size_t>(of_rank)])];
  return base::Text("rank ", of_rank, " on ", host);
}

void ThrowPeerLost(const std::string& text) {
  constexpr std::chrono::milliseconds kCulpritFirst{300};
  std::this_thread::sleep_for(kCulpritFirst);
  throw Error(
      ErrorCode::kPeerLost,
      text + "; start the job again (a job that saves checkpoints continues from the newest)");
}

void ThrowServerLost(const ServerJob& job, int server) {
  ThrowPeerLost(base::Text(
      "parameter server ", server, " (", job.Name(server), ") is lost with its variables"));
}

namespace {

ops::LocalAddress LocalPlace(const std::string& job, int server) {
  return ops::LocalAddress(base::Text("dtrun.", job.substr(0, 64), ".ps.", server));
}

ops::FileDescriptor NewSocket() {
  ops::FileDescriptor made(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (made.get() < 0) ops::ThrowErrno("socket");
  return made;
}

void SetNonBlocking(int socket) { ::fcntl(socket, F_SETFL, O_NONBLOCK); }

}  // namespace

ops::FileDescriptor ListenLocally(const std::string& job, int server) {
  ops::FileDescriptor listener = NewSocket();
  const ops::LocalAddress place = LocalPlace(job, server);
  if (::bind(listener.get(), place.get(), place.length()) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0)
    ops::ThrowErrno(base::Text("bind of parameter server ", server));
  SetNonBlocking(listener.get());
  return listener;
}

ops::FileDescriptor ConnectLocally(const std::string& job, int server) {
  ops::FileDescriptor socket = NewSocket();
  const ops::LocalAddress place = LocalPlace(job, server);
  if (::connect(socket.get(), place.get(), place.length()) != 0) {
    if (errno == ECONNREFUSED || errno == EINTR || errno == EAGAIN) return ops::FileDescriptor();
    ops::ThrowErrno(base::Text("connect to parameter server ", server));
  }
  if (!ops::TrustedPeer(socket.get()))
    throw Error(
        ErrorCode::kSystem, "a process of another user has taken a parameter server's place");
  SetNonBlocking(socket.get());
  return socket;
}

ops::FileDescriptor AcceptFrom(int listener, bool local) {
  if (!local) return ops::AcceptTcp(listener);
  ops::FileDescriptor socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.get() < 0 || !ops::TrustedPeer(socket.get())) return ops::FileDescriptor();
  return socket;
}

std::string ClientProof(const std::string& secret, const std::string& both) {
  return base::HmacSha256(secret, "dtrun parameter server: a rank" + both);
}

std::string ServerProof(const std::string& secret, const std::string& both) {
  return base::HmacSha256(secret, "dtrun parameter server: a server" + both);
}

namespace {

constexpr uint32_t kMark = 0x73707464;  // bytes of other programs do not begin with it
constexpr uint64_t kChunk = 1 << 20;    // memory grows with received bytes, not announced ones

ops::FileDescriptor FileOf(msghdr& message) {
  ops::FileDescriptor found;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    for (size_t i = 0; i < (part->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
      int file = -1;
      std::memcpy(&file, CMSG_DATA(part) + i * sizeof(int), sizeof file);
      found = ops::FileDescriptor(file);
    }
  }
  return found;
}

}  // namespace

uint64_t BytesOf(const Pieces& pieces) {
  uint64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.bytes;
  return bytes;
}

MessageStream::MessageStream(ops::FileDescriptor socket) : socket_(std::move(socket)) {}

// Returns true when all bytes have been received.
bool MessageStream::ReadInto(char* data, uint64_t bytes, uint64_t& had, State& state) {
  while (had < bytes) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    iovec place = {data + had, bytes - had};
    msghdr message = {};
    message.msg_iov = &place;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0 || (got < 0 && ops::HasPeerEnded(errno))) {
      state = State::kEnded;
      return false;
    }
    if (got < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK)
        ops::ThrowErrno("recv in a parameter server job");
      state = State::kPartial;
      return false;
    }
    if (ops::FileDescriptor file = FileOf(message); file.get() >= 0) file_ = std::move(file);
    had += static_cast<uint64_t>(got);
  }
  return true;
}

void MessageStream::BeginBody(const Target& target) {
  if (header_.mark != kMark)
    throw Error(ErrorCode::kSystem, "invalid message: expected a message of a parameter server");
  body_.clear();
  text_.clear();
  body_piece_ = 0;
  piece_had_ = 0;
  if (header_.bytes == 0) return;
  if (target) body_ = target(header_);
  if (!body_.empty() ? BytesOf(body_) != header_.bytes : header_.bytes > most_text_)
    throw Error(
        ErrorCode::kSystem,
        base::Text(
            "a peer announced a message of ", header_.bytes, " bytes; expected ",
            body_.empty() ? base::Text("at most ", most_text_) : base::Text(BytesOf(body_))));
}

MessageStream::State MessageStream::Receive(const Target& target) {
  if (std::exchange(whole_, false)) header_had_ = 0;
  State state = State::kPartial;
  if (header_had_ < sizeof header_) {
    if (!ReadInto(reinterpret_cast<char*>(&header_), sizeof header_, header_had_, state))
      return state;
    BeginBody(target);
  }
  for (; body_piece_ < body_.size(); ++body_piece_, piece_had_ = 0) {
    const Piece& piece = body_[body_piece_];
    if (!ReadInto(piece.data, piece.bytes, piece_had_, state)) return state;
  }
  while (body_.empty() && text_.size() < header_.bytes) {
    const uint64_t begun = text_.size() - piece_had_;  // piece_had_: of the incomplete chunk
    const uint64_t wanted = std::min(kChunk, header_.bytes - begun);
    text_.resize(begun + wanted);
    const bool all = ReadInto(text_.data() + begun, wanted, piece_had_, state);
    text_.resize(begun + piece_had_);
    if (!all) return state;
    piece_had_ = 0;
  }
  whole_ = true;
  return State::kWhole;
}

void MessageStream::Send(MessageHeader header, const Pieces& pieces, int file) {
  header.mark = kMark;
  header.bytes = BytesOf(pieces);
  outgoing_.push_back(
      {std::string(reinterpret_cast<const char*>(&header), sizeof header), pieces, file});
}

void MessageStream::Send(MessageHeader header, std::string text, int file) {
  header.mark = kMark;
  header.bytes = text.size();
  outgoing_.push_back(
      {std::string(reinterpret_cast<const char*>(&header), sizeof header) + text, {}, file});
}

bool MessageStream::Flush() {
  while (!outgoing_.empty()) {
    Outgoing& next = outgoing_.front();
    const Piece now =
        next.piece == 0 ? Piece{next.own.data(), next.own.size()} : next.pieces[next.piece - 1];
    if (next.sent == now.bytes) {
      next.sent = 0;
      if (++next.piece > next.pieces.size()) outgoing_.pop_front();
      continue;
    }
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    iovec place = {now.data + next.sent, now.bytes - next.sent};
    msghdr message = {};
    message.msg_iov = &place;
    message.msg_iovlen = 1;
    if (next.file >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* part = CMSG_FIRSTHDR(&message);
      part->cmsg_level = SOL_SOCKET;
      part->cmsg_type = SCM_RIGHTS;
      part->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(part), &next.file, sizeof(int));
    }
    const ssize_t some = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (some >= 0) {
      next.file = -1;
      next.sent += static_cast<uint64_t>(some);
    } else if (ops::HasPeerEnded(errno)) {
      return false;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    } else if (errno != EINTR) {
      ops::ThrowErrno("send in a parameter server job");
    }
  }
  return true;
}

namespace {

struct Head {
  uint64_t dtype, count, name_bytes;
};

}  // namespace

std::string EncodeTensors(const std::vector<Tensor>& tensors) {
  std::string bytes;
  for (const Tensor& tensor : tensors) {
    const Head head = {
        static_cast<uint64_t>(tensor.buffer.dtype), tensor.buffer.count, tensor.name.size()};
    bytes.append(reinterpret_cast<const char*>(&head), sizeof head);
    bytes += tensor.name;
    if (tensor.buffer.count > 0)
      bytes.append(static_cast<const char*>(tensor.buffer.data), tensor.buffer.bytes());
  }
  return bytes;
}

void DecodeTensors(const std::string& bytes, TensorFile& tensors) {
  for (size_t at = 0; at < bytes.size();) {
    const auto take = [&](void* to, uint64_t wanted) {
      if (wanted > bytes.size() - at)
        throw Error(ErrorCode::kSystem, "a parameter server sent an incomplete state");
      std::memcpy(to, bytes.data() + at, wanted);
      at += wanted;
    };
    Head head;
    take(&head, sizeof head);
    const auto dtype = static_cast<DType>(head.dtype);
    const uint64_t left = bytes.size() - at;
    if (SizeOf(dtype) == 0 || head.count > left || head.name_bytes > left)
      throw Error(ErrorCode::kSystem, "a parameter server sent an invalid state");
    std::string name(head.name_bytes, '\0');
    take(name.data(), name.size());
    tensors.moved.push_back(std::make_unique<char[]>(head.count * SizeOf(dtype) + 1));
    Buffer buffer(tensors.moved.back().get(), head.count, dtype);
    take(buffer.data, buffer.bytes());
    tensors.tensors.push_back({std::move(name), buffer, {head.count}});
  }
}

namespace {

using base::Text;

constexpr std::chrono::milliseconds kRetry{5};  // no call waits until a listener appears
constexpr std::chrono::seconds kConnectTime{1};

std::string DidNotCome(const ServerJob& job, int server) {
  return Text(
      "parameter server ", server, " (", job.Name(server), ") did not answer in ",
      job.timeout.count(), " s");
}

[[noreturn]] void RefuseProof(const ServerJob& job, int server) {
  throw Error(
      ErrorCode::kSystem, Text(
                              "the process that listens as parameter server ", server, " (",
                              job.Name(server), ") does not know the secret of this job"));
}

// Both sides prove that they know the secret. A proof covers random bytes of both sides, so it is
// valid for one connection only.
void ProveEachOther(
    const ServerJob& job, int server, MessageStream& stream, PeerDeadline deadline) {
  const std::string late = DidNotCome(job, server);
  const auto hear = [&](MessageKind kind) {
    if (!AwaitMessage(stream, deadline, late) || stream.header().kind != kind)
      RefuseProof(job, server);
    return stream.text();
  };
  const std::string own = ops::RandomBytes();
  const std::string both = hear(MessageKind::kChallenge) + own;
  stream.Send({.kind = MessageKind::kProof}, own + ClientProof(job.secret, both));
  if (!base::EqualInConstantTime(hear(MessageKind::kProven), ServerProof(job.secret, both)))
    RefuseProof(job, server);
}

}  // namespace

std::unique_ptr<MessageStream> VisitServer(
    const ServerJob& job, int server, const ops::TcpPlace& place, PeerDeadline deadline,
    const std::function<bool()>& give_up) {
  using Clock = std::chrono::steady_clock;
  const bool local = job.shares_host(server);
  std::string cause;
  for (;;) {
    const PeerDeadline soon = std::min(deadline, Clock::now() + kConnectTime);
    ops::FileDescriptor socket =
        local ? ConnectLocally(job.job, server) : ops::TryConnect(place, kListener, soon, cause);
    if (socket.get() >= 0) {
      auto stream = std::make_unique<MessageStream>(std::move(socket));
      if (!local) ProveEachOther(job, server, *stream, deadline);
      return stream;
    }
    if (give_up && give_up()) return nullptr;
    if (Clock::now() > deadline) {
      if (!cause.empty()) cause = "; the last attempt to connect failed: " + cause;
      throw Error(ErrorCode::kTimeout, DidNotCome(job, server) + cause);
    }
    std::this_thread::sleep_for(kRetry);
  }
}

bool AwaitMessage(
    MessageStream& stream, PeerDeadline deadline, const std::string& late,
    const MessageStream::Target& target) {
  for (;;) {
    const bool alive = stream.Flush();
    const MessageStream::State state = stream.Receive(target);
    if (state == MessageStream::State::kWhole) return true;
    if (state == MessageStream::State::kEnded || !alive) return false;
    const short events = stream.sending() ? POLLIN | POLLOUT : POLLIN;
    if (!ops::AwaitReady(stream.socket(), events, deadline)) throw Error(ErrorCode::kTimeout, late);
  }
}

std::string HelloText(const VariableLayout& layout) {
  return Text("dtrun ", base::kVersion, "\n", layout.description);
}

}  // namespace dtrun::runtime
