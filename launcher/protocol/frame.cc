#include "launcher/protocol/frame.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {
namespace {

using base::Text;

constexpr size_t kHeader = 9;

void Append32(std::string& bytes, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(value >> shift & 0xff);
}

uint32_t Read32(const char* bytes) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

// No default case, so the compiler reports a forgotten type.
bool IsType(uint8_t type) {
  switch (static_cast<FrameType>(type)) {
    case FrameType::kJob:
    case FrameType::kPing:
    case FrameType::kEnd:
    case FrameType::kNotice:
    case FrameType::kStop:
    case FrameType::kContinue:
    case FrameType::kInput:
    case FrameType::kAskProgress:
    case FrameType::kPeers:
    case FrameType::kRankEnded:
    case FrameType::kTerminate:
    case FrameType::kEpoch:
    case FrameType::kRestart:
    case FrameType::kFault:
    case FrameType::kReady:
    case FrameType::kRefused:
    case FrameType::kStarted:
    case FrameType::kOutput:
    case FrameType::kEnded:
    case FrameType::kFlight:
    case FrameType::kPong:
    case FrameType::kDone:
    case FrameType::kNoticed:
    case FrameType::kStopped:
    case FrameType::kTaken:
    case FrameType::kProgress:
    case FrameType::kTrace:
    case FrameType::kState:
    case FrameType::kTold:
    case FrameType::kRoutes:
    case FrameType::kHello:
    case FrameType::kWelcome:
    case FrameType::kProgram:
    case FrameType::kExit:
    case FrameType::kTakes:
    case FrameType::kVariable:
    case FrameType::kWord:
    case FrameType::kLaunch:
    case FrameType::kSignal:
    case FrameType::kCode:
    case FrameType::kReach:
    case FrameType::kBelow:
    case FrameType::kAttach:
    case FrameType::kHeld:
    case FrameType::kVia:
    case FrameType::kAll:
    case FrameType::kBundle:
    case FrameType::kLostAgent:
    case FrameType::kGot: return true;
  }
  return false;
}

size_t MostBody(FrameType type) {
  const bool wraps =
      type == FrameType::kVia || type == FrameType::kAll || type == FrameType::kBundle;
  return wraps ? kMostBody + kMostWrapping : kMostBody;
}

// The first line if the bytes are text, for example from a login shell; otherwise "". Four letters
// are never the length of a frame, because they exceed kMostBody.
std::string LineOf(std::string_view bytes) {
  const auto is_text = [](char c) { return c == '\n' || c == '\r' || c == '\t' || c >= ' '; };
  constexpr size_t kLength = 4;
  if (bytes.size() < kLength || !std::all_of(bytes.begin(), bytes.begin() + kLength, is_text))
    return "";
  const size_t begin = std::min(bytes.find_first_not_of(" \t\r\n"), bytes.size());
  bytes.remove_prefix(begin);
  return std::string(bytes.substr(0, bytes.find_first_of("\r\n")));
}

}  // namespace

std::string Encode(const Frame& frame) {
  if (frame.body.size() > MostBody(frame.type))
    throw LaunchError(
        ExitCode::kInternal, Text(
                                 "a message between dtrun and an agent has ", frame.body.size(),
                                 " bytes; expected at most ", MostBody(frame.type)));
  std::string bytes;
  bytes.reserve(kHeader + frame.body.size());
  Append32(bytes, static_cast<uint32_t>(frame.body.size()));
  bytes += static_cast<char>(frame.type);
  Append32(bytes, static_cast<uint32_t>(frame.rank));
  return bytes + frame.body;
}

std::optional<Frame> FrameReader::Next() {
  const size_t there = bytes_.size() - start_;
  if (there < kHeader) return std::nullopt;
  const char* header = bytes_.data() + start_;
  const size_t length = Read32(header);
  const auto type = static_cast<uint8_t>(header[4]);
  if (const std::string text = LineOf(std::string_view(bytes_).substr(start_)); !text.empty())
    throw LaunchError(
        ExitCode::kInternal,
        Text("found the text ", Excerpt(text), "; expected a message of dtrun"));
  if (!IsType(type) || length > MostBody(static_cast<FrameType>(type)))
    throw LaunchError(
        ExitCode::kInternal, Text(
                                 "found a message of type ", int{type}, " and ", length,
                                 " bytes; expected a message of dtrun"));
  if (there < kHeader + length) return std::nullopt;
  Frame frame{
      static_cast<FrameType>(type), static_cast<int32_t>(Read32(header + 5)),
      bytes_.substr(start_ + kHeader, length)};
  start_ += kHeader + length;
  // Erases the frames already read once they fill more than half of the buffer.
  if (start_ > bytes_.size() / 2) {
    bytes_.erase(0, start_);
    start_ = 0;
  }
  return frame;
}

// ---- Streams of frames --------------------------------------------------------------------------

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
  if (ended_ || is_deaf_) return;
  queue_ += Encode(frame);
  Update();
}

void FrameStream::SetPaused(bool paused) {
  paused_ = paused;
  Update();
}

// A pipe has two descriptors, one per direction. A socket has one for both.
void FrameStream::Update() {
  const short in = ended_ || paused_ ? 0 : POLLIN;
  const short out = ended_ || Allowed() == 0 ? 0 : POLLOUT;
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
  if (got <= 0)
    return End(reader_.in_frame() ? "the connection ended in the middle of a message" : "");
  reader_.Feed(bytes, static_cast<size_t>(got));
  try {
    while (const std::optional<Frame> frame = reader_.Next()) {
      if (frame->type == FrameType::kGot) {
        const auto bytes_there = static_cast<size_t>(base::ParseInteger(frame->body).value_or(0));
        on_the_way_ -= std::min(bytes_there, on_the_way_);
        Update();
      } else {
        on_frame_(*frame);
      }
    }
  } catch (const LaunchError& error) {
    return End(error.what());
  }
  came_ += static_cast<size_t>(got);
  if (says_what_came_ && came_ >= kWindow / 2)
    Send({FrameType::kGot, -1, Text(std::exchange(came_, 0))});
}

// The number of queued bytes that may be written now.
size_t FrameStream::Allowed() const {
  if (!has_window_) return queue_.size();
  return std::min(queue_.size(), kWindow - std::min(on_the_way_, kWindow));
}

// The other side may have sent its last frames before it left, so only Read finds its end.
void FrameStream::Write() {
  const ssize_t written = write(out_, queue_.data(), Allowed());
  if (written < 0) {
    if (errno == EAGAIN || errno == EINTR) return;
    is_deaf_ = true;
    queue_.clear();
    return Update();
  }
  queue_.erase(0, static_cast<size_t>(written));
  if (has_window_) on_the_way_ += static_cast<size_t>(written);
  Update();
}

void FrameStream::Flush() {
  while (!ended_ && Allowed() > 0) {
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

// ---- The socket of an agent ---------------------------------------------------------------------

namespace {

constexpr size_t kMostFiles = 2;

[[noreturn]] void Fail(const std::string& what, int file = -1) {
  const int error = errno;
  if (file >= 0) close(file);
  throw LaunchError(ExitCode::kInternal, Text(what, ": ", std::strerror(error)));
}

// The job's name is random, so no other process can take the agent's address in advance.
std::string AgentName(const std::string& job, int host) { return Text("dtrun.", job, ".", host); }

socklen_t AddressOf(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

}  // namespace

int ListenForUser(const std::string& name) {
  const int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (file < 0) Fail("cannot make a socket");
  sockaddr_un address;
  const socklen_t length = AddressOf(name, address);
  if (bind(file, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(file, SOMAXCONN) != 0)
    Fail("cannot listen on this host", file);
  return file;
}

int ConnectToUser(const std::string& name) {
  const int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (file < 0) Fail("cannot make a socket");
  sockaddr_un address;
  const socklen_t length = AddressOf(name, address);
  if (connect(file, reinterpret_cast<const sockaddr*>(&address), length) == 0) {
    if (TrustedPeer(file) >= 0) return file;
    errno = EPERM;
  }
  const int error = errno;
  close(file);
  errno = error;
  return -1;
}

int ListenForRanks(const std::string& job, int host) { return ListenForUser(AgentName(job, host)); }

int ConnectToAgent(const std::string& job, int host) {
  const int file = ConnectToUser(AgentName(job, host));
  if (file < 0 && errno == EPERM) Fail("the agent of this host belongs to another user");
  if (file < 0) Fail("cannot connect to the agent of this host");
  return file;
}

pid_t TrustedPeer(int connection) {
  ucred peer = {};
  socklen_t length = sizeof peer;
  const bool known = getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0;
  return known && peer.uid == geteuid() ? peer.pid : -1;
}

void SendWithFiles(int connection, const std::string& bytes, const std::vector<int>& files) {
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFiles * sizeof(int))] = {};
  iovec data = {const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!files.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(files.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), files.data(), files.size() * sizeof(int));
  }
  if (sendmsg(connection, &message, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size()))
    Fail("cannot send to the agent of this host");
}

ssize_t ReceiveWithFiles(int connection, char* bytes, size_t most, std::vector<int>& files) {
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFiles * sizeof(int))] = {};
  iovec data = {bytes, most};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = recvmsg(connection, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR ? -1 : 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int file = -1;
      std::memcpy(&file, CMSG_DATA(header) + i * sizeof(int), sizeof file);
      files.push_back(file);
    }
  }
  return got;
}

}  // namespace dtrun::launcher
