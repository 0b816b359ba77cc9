#include "runtime/parameter_server/message_stream.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::runtime {
namespace {

constexpr uint32_t kMark = 0x73707464;  // another program's bytes do not begin like this
constexpr uint64_t kChunk = 1 << 20;  // memory grows with what has come, not with what is promised

bool IsGone(int error) { return error == ECONNRESET || error == EPIPE || error == ETIMEDOUT; }

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

// True when all of it is there.
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
    if (got == 0 || (got < 0 && IsGone(errno))) {
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
    throw Error(ErrorCode::kSystem, "what came from a peer is no message of a parameter server");
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
    const uint64_t begun = text_.size() - piece_had_;  // piece_had_: of the chunk that is not whole
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
    } else if (IsGone(errno)) {
      return false;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    } else if (errno != EINTR) {
      ops::ThrowErrno("send in a parameter server job");
    }
  }
  return true;
}

}  // namespace dtrun::runtime
