// Connections. Each rank listens at its own address. The rank that sends first connects, and both
// ends prove that they know the job's key (tcp_handshake.h). If two ranks call each other at the
// same time, the call of the lower rank counts: the lower rank does not take the other call, and
// the higher rank drops its own call.
//
// Messages. A connection carries frames, each followed by the bytes of its message. If the receive
// has been started, the bytes go straight to its memory. Otherwise they go to memory of the wire.
// A synchronous message has a number, and the receiver answers with that number when a receive has
// taken the message.
//
// Lost ranks. Each rank is connected with the rank after it from the start, so the end of any
// process is seen. It ends the connections at once. A host that is silent shows in the
// time since its kernel last acknowledged anything: keep-alive packets are acknowledged even by a
// rank that computes or is stopped. TCP_USER_TIMEOUT would not do, because it also ends a
// connection whose peer does not read for a while.

#include "ops/tcp/tcp_wire.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "base/hmac_sha256.h"
#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::ops::tcp {
namespace {

using base::Text;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A process that ends loses its connections first. So this rank waits before it acts on the loss:
// meanwhile, the launcher sees the end of the process that is to blame.
constexpr milliseconds kCulpritFirst{300};
constexpr seconds kFarewell{5};         // for the last messages at the end of the job
constexpr seconds kHandshake{10};       // for a process that has connected
constexpr milliseconds kLook{250};      // between two looks for silent hosts
constexpr milliseconds kDoubted{1500};  // for a call of a host that may not answer
constexpr milliseconds kRetry{500};     // of a call that the peer has refused
constexpr char kTooLong[] = "it sent a message that is longer than expected";
constexpr size_t kMostGuests = 256;
constexpr size_t kStaging = 4 << 10;  // bytes; what lands here is copied once more
constexpr int kMostPieces = 32;       // of a system call
constexpr int kMostReads = 64;        // from a rank before the next one has its turn
constexpr uint64_t kMostBytes = uint64_t{1} << 31;

// The names of sockets in the set that is polled. Smaller names are ranks.
constexpr uint64_t kGuests = uint64_t{1} << 32, kListener = ~uint64_t{0};

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

void Prepare(int socket, seconds lost_after) {
  const auto part_of = [&](int parts) {
    return std::max(1, static_cast<int>(lost_after.count()) / parts);
  };
  const int on = 1, off = 0, idle_s = part_of(3), interval_s = part_of(6), probes = 60;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  ::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &off, sizeof off);
}

// The time since the kernel of the peer last acknowledged anything. nullopt: it has not answered
// the call.
std::optional<milliseconds> SilenceOf(int socket) {
  tcp_info info = {};
  socklen_t length = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return milliseconds(0);
  if (info.tcpi_state == TCP_SYN_SENT) return std::nullopt;
  return milliseconds(info.tcpi_last_ack_recv);
}

// Whether the kernel of the peer does not acknowledge what this one sends.
bool Unheard(int socket) {
  tcp_info info = {};
  socklen_t length = sizeof info;
  return ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
         (info.tcpi_retransmits >= 2 || info.tcpi_probes >= 2);
}

}  // namespace

TcpWire::TcpWire(Bootstrap& bootstrap, Engine& engine, const wire::Settings& settings)
    : rank_(bootstrap.rank()), settings_(settings), staging_(kStaging) {
  TcpPlace mine = {settings.address, 0};
  if (!mine.host.empty()) listener_ = ListenIn(settings.ports, rank_, mine, "this rank");
  const std::vector<std::string> places = bootstrap.AllGather(mine.Text());
  for (size_t rank = 0; rank < places.size(); ++rank) {
    if (TcpPlace::Read(places[rank]).host.empty())
      throw Error(
          ErrorCode::kUnavailable,
          Text("rank ", rank, " knows no address at which other hosts reach it (MASTER_ADDR)"));
  }
  job_key_ = base::HmacSha256(settings.secret, bootstrap.AllGather(RandomBytes())[0]);
  peers_.resize(places.size());
  for (size_t rank = 0; rank < places.size(); ++rank) {
    peers_[rank].rank = static_cast<int>(rank);
    peers_[rank].place = TcpPlace::Read(places[rank]);
  }
  poll_ = FileDescriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (poll_.get() < 0) ThrowErrno("epoll_create1");
  Register(listener_.get(), kListener, false);
  waker_ = std::make_unique<wire::Waker>(poll_.get(), engine.doorbell_segment());
  Connect(peers_[(static_cast<size_t>(rank_) + 1) % peers_.size()]);
}

TcpWire::~TcpWire() {
  waker_.reset();
  for (Peer& peer : peers_) {
    if (peer.connected) Enqueue(peer, {.frame = {kBye, 0, 0, 0}, .ends_when_sent = true});
  }
  const auto queued = [](const Peer& peer) { return !peer.queue.empty(); };
  const auto deadline = Clock::now() + kFarewell;
  while (std::any_of(peers_.begin(), peers_.end(), queued) && Clock::now() < deadline) {
    pollfd file = {poll_.get(), POLLIN, 0};
    ::poll(&file, 1, 10);
    Progress();
    ended_.clear();
  }
  for (Peer& peer : peers_) {
    if (peer.connected) ::shutdown(peer.socket.get(), SHUT_WR);
  }
}

// --- messages -----------------------------------------------------------------------------------

void TcpWire::Send(
    int rank, int tag, const void* data, uint64_t bytes, Mode mode,
    std::shared_ptr<wire::Listener> listener, uint64_t key) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  const bool synchronous = mode == Mode::kSynchronous;
  Enqueue(
      peer, {.frame = {kMessage, tag, bytes, synchronous ? ++peer.ids : 0},
             .data = static_cast<const char*>(data),
             .end = {std::move(listener), key},
             .ends_when_sent = !synchronous});
}

void TcpWire::Receive(
    int rank, int tag, void* data, uint64_t bytes, std::shared_ptr<wire::Listener> listener,
    uint64_t key) {
  Posted posted = {static_cast<char*>(data), bytes, {std::move(listener), key}};
  // Takes the first early message of `peer` with this tag.
  const auto take = [&](Peer& peer) {
    const auto found = std::find_if(peer.early.begin(), peer.early.end(), [&](const auto& early) {
      return early->frame.tag == tag && early->receive == nullptr;
    });
    if (found == peer.early.end()) return false;
    Early& early = **found;
    if (!early.whole) {
      early.receive = std::make_unique<Posted>(std::move(posted));
      return true;
    }
    if (early.frame.bytes > posted.bytes) {
      Fail(peer, kTooLong);
      return false;
    }
    std::memcpy(posted.data, early.data.get(), early.frame.bytes);
    Finish(std::move(posted.end));
    Answer(peer, early.frame.id);
    peer.early.erase(found);
    return true;
  };
  if (rank != kAnySource) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    if (!take(peer) && peer.error.empty()) peer.posted[tag].push_back(std::move(posted));
    return;
  }
  if (std::none_of(peers_.begin(), peers_.end(), take)) posted_[tag].push_back(std::move(posted));
}

void TcpWire::Finish(End end) {
  ended_.push_back(std::move(end));
  ++events_;
}

void TcpWire::Answer(Peer& peer, uint64_t id) {
  if (id != 0) Enqueue(peer, {.frame = {kTaken, 0, 0, id}, .ends_when_sent = true});
}

void TcpWire::Poll(uint64_t& seen) {
  if (seen != polls_) {
    seen = polls_;
    return;
  }
  seen = ++polls_;
  if (closed_) return;
  const uint64_t before = events_;
  Resume();
  Progress();
  TellEnded();
  if (events_ == before || failed_ > 0) Watch(Clock::now());
}

bool TcpWire::Arm() {
  if (!paused_.empty()) return false;
  waker_->Arm();
  return true;
}

void TcpWire::TellEnded() {
  while (!ended_.empty()) {
    std::vector<End> ended;
    ended.swap(ended_);
    for (const End& end : ended)
      if (end.listener != nullptr) end.listener->Ended(end.key);
  }
}

// A message that has begun cannot be taken back, so its connection ends.
void TcpWire::Drop(const wire::Listener& listener) {
  const auto is_of = [&](const End& end) { return end.listener.get() == &listener; };
  for (Peer& peer : peers_) {
    const bool comes = (peer.receive != nullptr && is_of(peer.receive->end)) ||
                       (peer.arriving != nullptr && peer.arriving->receive != nullptr &&
                        is_of(peer.arriving->receive->end));
    const bool goes =
        !peer.queue.empty() && peer.queue.front().sent > 0 && is_of(peer.queue.front().end);
    if (comes || goes) Fail(peer, "an operation with it was given up");
    std::erase_if(peer.queue, [&](const Outgoing& message) { return is_of(message.end); });
    std::erase_if(peer.untaken, [&](const auto& message) { return is_of(message.second); });
    for (auto& [tag, queue] : peer.posted)
      std::erase_if(queue, [&](const Posted& posted) { return is_of(posted.end); });
  }
  std::erase_if(ended_, is_of);
}

void TcpWire::Close(const wire::Listener& listener) {
  closed_ = true;
  for (auto& [tag, queue] : posted_)
    std::erase_if(
        queue, [&](const Posted& posted) { return posted.end.listener.get() == &listener; });
}

// --- writing ------------------------------------------------------------------------------------

void TcpWire::Enqueue(Peer& peer, Outgoing message) {
  if (!peer.error.empty()) {
    if (message.ends_when_sent) Finish(std::move(message.end));
    return;
  }
  peer.queue.push_back(std::move(message));
  if (peer.connected) {
    if (peer.queue.size() > 1 || !peer.writable) return;
    if (!reading_) return Flush(peer);
    // Answers to many messages leave in one packet.
    if (!std::exchange(peer.flushes_later, true)) flushed_later_.push_back(peer.rank);
  } else if (!HasCall(peer) && peer.retry == base::TimePoint()) {
    Connect(peer);
  }
}

void TcpWire::Flush(Peer& peer) {
  while (!peer.queue.empty()) {
    iovec pieces[kMostPieces];
    int count = 0;
    for (auto message = peer.queue.begin(); message != peer.queue.end(); ++message) {
      if (count + 2 > kMostPieces) break;
      uint64_t skipped = message->sent;
      if (skipped < sizeof(Frame)) {
        pieces[count++] = {
            reinterpret_cast<char*>(&message->frame) + skipped, sizeof(Frame) - skipped};
        skipped = sizeof(Frame);
      }
      const uint64_t begin = skipped - sizeof(Frame),
                     end = message->data ? message->frame.bytes : 0;
      if (begin < end) pieces[count++] = {const_cast<char*>(message->data) + begin, end - begin};
    }
    msghdr all = {};
    all.msg_iov = pieces;
    all.msg_iovlen = static_cast<size_t>(count);
    const ssize_t some = ::sendmsg(peer.socket.get(), &all, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (some < 0 && errno == EINTR) continue;
    if (some < 0 && !WouldBlock(errno)) return Fail(peer, WhyOf(peer, errno));
    if (some < 0) return WaitToWrite(peer, true);
    Sent(peer, static_cast<uint64_t>(some));
  }
  WaitToWrite(peer, false);
}

void TcpWire::Sent(Peer& peer, uint64_t bytes) {
  while (!peer.queue.empty()) {
    Outgoing& message = peer.queue.front();
    const uint64_t whole = sizeof(Frame) + (message.data != nullptr ? message.frame.bytes : 0);
    const uint64_t part = std::min(bytes, whole - message.sent);
    message.sent += part;
    bytes -= part;
    if (message.sent < whole) return;
    if (message.ends_when_sent) {
      Finish(std::move(message.end));
    } else {
      peer.untaken.emplace(message.frame.id, std::move(message.end));
    }
    peer.queue.pop_front();
  }
}

void TcpWire::WaitToWrite(Peer& peer, bool wait) {
  if (peer.writable == !wait) return;
  peer.writable = !wait;
  epoll_event event = {};
  event.events = wait ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = static_cast<uint64_t>(peer.rank);
  ::epoll_ctl(poll_.get(), EPOLL_CTL_MOD, peer.socket.get(), &event);
}

// --- reading ------------------------------------------------------------------------------------

void TcpWire::Read(Peer& peer) {
  for (int reads = 0; reads < kMostReads && peer.connected && !peer.paused; ++reads) {
    iovec pieces[2] = {{peer.target, peer.left}, {staging_.data(), staging_.size()}};
    const bool direct = peer.left > 0;
    const uint64_t wanted = peer.left + staging_.size();
    const ssize_t some = ::readv(peer.socket.get(), direct ? pieces : pieces + 1, direct ? 2 : 1);
    if (some < 0 && errno == EINTR) continue;
    if (some < 0 && WouldBlock(errno)) return;
    if (some <= 0) return Fail(peer, WhyOf(peer, some == 0 ? 0 : errno));
    const auto got = static_cast<uint64_t>(some);
    const uint64_t placed = std::min(got, peer.left);
    peer.target += placed;
    peer.left -= placed;
    if (direct && peer.left == 0) EndMessage(peer);
    Parse(peer, staging_.data(), got - placed);
    if (got < wanted) return;
  }
}

void TcpWire::Parse(Peer& peer, const char* data, uint64_t bytes) {
  while (bytes > 0 && peer.error.empty()) {
    if (peer.left > 0) {
      const uint64_t part = std::min(bytes, peer.left);
      std::memcpy(peer.target, data, part);
      peer.target += part;
      peer.left -= part;
      data += part;
      bytes -= part;
      if (peer.left == 0) EndMessage(peer);
      continue;
    }
    const uint64_t part = std::min(bytes, sizeof(Frame) - peer.frame_had);
    std::memcpy(reinterpret_cast<char*>(&peer.frame) + peer.frame_had, data, part);
    peer.frame_had += part;
    data += part;
    bytes -= part;
    if (peer.frame_had < sizeof(Frame)) return;
    if (BeginMessage(peer)) continue;
    peer.paused = true;
    peer.stash.assign(data, bytes);
    paused_.push_back(peer.rank);
    return;
  }
}

// Goes on where Parse has paused. By now, the listeners of the earlier messages have been told.
void TcpWire::Resume() {
  reading_ = true;
  for (const int rank : std::exchange(paused_, {})) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    if (!peer.paused) continue;
    if (!BeginMessage(peer)) {
      paused_.push_back(rank);  // another rank's message has just ended
      continue;
    }
    peer.paused = false;
    const std::string stash = std::exchange(peer.stash, {});
    Parse(peer, stash.data(), stash.size());
  }
  FlushLater();
}

// Returns false if the message has no receive yet, but may get one soon: an earlier message has
// just ended, and its listener may start the receive. Waiting saves a copy.
bool TcpWire::BeginMessage(Peer& peer) {
  const Frame& frame = peer.frame;
  if (frame.kind == kMessage && frame.id != 0 && !ended_.empty() &&
      peer.posted.find(frame.tag) == peer.posted.end())
    return false;
  peer.frame_had = 0;
  if (frame.kind == kBye) {
    peer.said_bye = true;
    Fail(peer, "it has left the job");
  } else if (frame.kind == kUnheard) {
    Fail(peer, "its host does not answer");
  } else if (frame.kind == kTaken) {
    const auto found = peer.untaken.find(frame.id);
    if (found != peer.untaken.end()) {  // otherwise dropped
      Finish(std::move(found->second));
      peer.untaken.erase(found);
    }
  } else if (frame.kind != kMessage || frame.bytes >= kMostBytes) {
    Fail(peer, "it sent bytes that are no message");
  } else {
    BeginData(peer);
  }
  return true;
}

void TcpWire::BeginData(Peer& peer) {
  const Frame& frame = peer.frame;
  // The first receive of this tag, from this rank or from any.
  for (auto* waiting : {&peer.posted, &posted_}) {
    const auto queue = waiting->find(frame.tag);
    if (queue == waiting->end() || queue->second.empty()) continue;
    peer.receive = std::make_unique<Posted>(std::move(queue->second.front()));
    queue->second.pop_front();
    if (queue->second.empty()) waiting->erase(queue);
    break;
  }
  if (peer.receive != nullptr) {
    if (frame.bytes > peer.receive->bytes) return Fail(peer, kTooLong);
    peer.target = peer.receive->data;
  } else {
    peer.arriving = std::make_shared<Early>(
        Early{.frame = frame, .data = std::make_unique_for_overwrite<char[]>(frame.bytes)});
    peer.early.push_back(peer.arriving);
    peer.target = peer.arriving->data.get();
  }
  peer.left = frame.bytes;
  if (peer.left == 0) EndMessage(peer);
}

void TcpWire::EndMessage(Peer& peer) {
  std::unique_ptr<Posted> receive = std::move(peer.receive);
  const uint64_t id = peer.frame.id;
  if (const std::shared_ptr<Early> early = std::move(peer.arriving)) {
    early->whole = true;
    if (early->receive == nullptr) return;
    receive = std::move(early->receive);
    if (early->frame.bytes > receive->bytes) return Fail(peer, kTooLong);
    std::memcpy(receive->data, early->data.get(), early->frame.bytes);
    std::erase(peer.early, early);
  }
  Finish(std::move(receive->end));
  Answer(peer, id);
}

// --- connections --------------------------------------------------------------------------------

void TcpWire::Register(int socket, uint64_t name, bool writes) {
  epoll_event event = {};
  event.events = writes ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = name;
  if (::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, socket, &event) != 0) ThrowErrno("epoll_ctl");
}

void TcpWire::Connect(Peer& peer) {
  peer.retry = {};
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  const int error =
      ::getaddrinfo(peer.place.host.c_str(), Text(peer.place.port).c_str(), &hints, &found);
  if (error != 0) return Fail(peer, Text("its address is invalid: ", ::gai_strerror(error)));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  peer.socket =
      FileDescriptor(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (peer.socket.get() < 0) ThrowErrno("socket");
  Prepare(peer.socket.get(), settings_.lost_after);
  if (::connect(peer.socket.get(), found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS)
    return Fail(peer, WhyOf(peer, errno));
  peer.handshake = std::make_unique<ClientHandshake>(job_key_, rank_, peer.rank);
  peer.called = Clock::now();
  Register(peer.socket.get(), static_cast<uint64_t>(peer.rank), true);
}

// The socket is connected and proven.
void TcpWire::Adopt(Peer& peer, FileDescriptor socket) {
  peer.handshake.reset();
  peer.socket = std::move(socket);
  peer.connected = true;
  peer.writable = false;
  peer.retry = {};
  ++events_;
  // The first look at the socket flushes the queue.
  Register(peer.socket.get(), static_cast<uint64_t>(peer.rank), true);
}

void TcpWire::HearConnecting(Peer& peer) {
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(peer.socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return Fail(peer, WhyOf(peer, error));
  switch (peer.handshake->Continue(peer.socket.get())) {
    case ClientHandshake::State::kUnderWay: {
      epoll_event event = {};
      event.events = peer.handshake->sends() ? EPOLLIN | EPOLLOUT : EPOLLIN;
      event.data.u64 = static_cast<uint64_t>(peer.rank);
      ::epoll_ctl(poll_.get(), EPOLL_CTL_MOD, peer.socket.get(), &event);
      return;
    }
    case ClientHandshake::State::kTaken: {
      FileDescriptor socket = std::move(peer.socket);
      ::epoll_ctl(poll_.get(), EPOLL_CTL_DEL, socket.get(), nullptr);
      return Adopt(peer, std::move(socket));
    }
    case ClientHandshake::State::kRefused:
      peer.handshake.reset();
      peer.socket = FileDescriptor();
      peer.retry = Clock::now() + kRetry;
      next_look_ = std::min(next_look_, peer.retry);
      return;
    case ClientHandshake::State::kWrong:
      return Fail(peer, "the process at its address does not know the secret of this job");
    case ClientHandshake::State::kEnded: return Fail(peer, WhyOf(peer, errno));
  }
}

void TcpWire::Accept() {
  for (;;) {
    FileDescriptor socket = AcceptTcp(listener_.get());
    if (socket.get() < 0) return;
    Prepare(socket.get(), settings_.lost_after);
    if (guests_.size() >= kMostGuests) {
      const auto oldest = std::min_element(
          guests_.begin(), guests_.end(),
          [](const auto& a, const auto& b) { return a.first < b.first; });
      guests_.erase(oldest);
    }
    const uint64_t number = guests_named_++;
    const int file = socket.get();
    guests_[number] = std::make_unique<Guest>(Guest{
        std::move(socket), ServerHandshake(job_key_, rank_, static_cast<int>(peers_.size())),
        Clock::now() + kHandshake});
    Register(file, kGuests + number, false);
    HearGuest(number);
  }
}

void TcpWire::HearGuest(uint64_t number) {
  const auto found = guests_.find(number);
  if (found == guests_.end()) return;
  Guest& guest = *found->second;
  const ServerHandshake::State state = guest.handshake.Continue(guest.socket.get());
  if (state == ServerHandshake::State::kUnderWay) return;
  if (state == ServerHandshake::State::kProven) {
    Peer& peer = peers_[static_cast<size_t>(guest.handshake.peer())];
    const bool own_call_counts = peer.handshake != nullptr && rank_ < peer.rank;
    const bool takes = !peer.connected && peer.error.empty() && !own_call_counts;
    if (guest.handshake.Tell(guest.socket.get(), takes) && takes) {
      ::epoll_ctl(poll_.get(), EPOLL_CTL_DEL, guest.socket.get(), nullptr);
      Adopt(peer, std::move(guest.socket));
    }
  }
  guests_.erase(number);
}

// --- progress -----------------------------------------------------------------------------------

void TcpWire::Progress() {
  epoll_event events[64];
  const int count = ::epoll_wait(poll_.get(), events, 64, 0);
  reading_ = true;
  for (int i = 0; i < count; ++i) {
    const uint64_t name = events[i].data.u64;
    if (name == kListener) {
      Accept();
    } else if (name >= kGuests) {
      HearGuest(name - kGuests);
    } else {
      Peer& peer = peers_[name];
      if (peer.handshake != nullptr) {
        HearConnecting(peer);
      } else if (peer.connected) {
        if ((events[i].events & EPOLLOUT) != 0) Flush(peer);
        if (peer.connected && (events[i].events & ~static_cast<uint32_t>(EPOLLOUT)) != 0)
          Read(peer);
      }
    }
  }
  FlushLater();
}

// Sends what has been queued while this rank was reading.
void TcpWire::FlushLater() {
  reading_ = false;
  for (const int rank : flushed_later_) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    peer.flushes_later = false;
    if (peer.connected && peer.writable) Flush(peer);
  }
  flushed_later_.clear();
}

void TcpWire::Watch(base::TimePoint now) {
  if (now < next_look_) return;
  next_look_ = now + kLook;
  for (Peer& peer : peers_) {
    if (failed_ > 0 && !peer.error.empty() && !peer.lost) {
      const base::TimePoint due = peer.failed + kCulpritFirst;
      if (now >= due) Lose(peer);
      if (now < due) next_look_ = std::min(next_look_, due);
    }
    if (peer.retry == base::TimePoint()) continue;
    if (now < peer.retry) next_look_ = std::min(next_look_, peer.retry);
    if (now >= peer.retry) Connect(peer);
  }
  if (now - watched_ < kLook) return;
  watched_ = now;
  std::erase_if(guests_, [now](const auto& guest) { return now >= guest.second->deadline; });
  for (const Peer& peer : peers_)
    if (IsSilent(peer, now)) doubted_.insert(peer.place.host);
  for (Peer& peer : peers_) {
    if (!IsSilent(peer, now)) continue;
    if (peer.connected) SayUnheard(peer);
    Fail(peer, "its host does not answer");
  }
}

// If the link is silent in one direction, this still arrives, unless it would break a message.
void TcpWire::SayUnheard(const Peer& peer) {
  if (!peer.queue.empty() && peer.queue.front().sent > 0) return;
  const Frame frame = {kUnheard, 0, 0, 0};
  ::send(peer.socket.get(), &frame, sizeof frame, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// If one rank of a host is silent, the others have half the time: the kernel of a host that answers
// acknowledges something every third of it. That also holds for connections that nothing waits for:
// a rank that is heard, but hears nothing, has to be told, because it cannot find out.
bool TcpWire::IsSilent(const Peer& peer, base::TimePoint now) const {
  const bool doubted = doubted_.count(peer.place.host) != 0;
  const milliseconds limit = settings_.lost_after;
  if (!HasCall(peer) && !(doubted && peer.connected)) return false;
  const std::optional<milliseconds> silence = SilenceOf(peer.socket.get());
  if (silence) return *silence >= (doubted ? limit / 2 : limit);
  return now - peer.called >= (doubted ? kDoubted : limit);
}

void TcpWire::Doubt(int rank) {
  const TcpPlace& place = peers_[static_cast<size_t>(rank)].place;
  if (place.host != peers_[static_cast<size_t>(rank_)].place.host) doubted_.insert(place.host);
}

// A rank that does not hear this host ends the connection, and only its packets get through.
std::string TcpWire::WhyOf(const Peer& peer, int error) {
  if (peer.connected && Unheard(peer.socket.get())) return "its host does not answer";
  if (error == 0 || error == EPIPE || error == ECONNRESET) return "its process has ended";
  if (error == ECONNREFUSED) return "its process has ended before it was connected";
  if (error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH)
    return "its host does not answer";
  return Text("its connection has failed: ", std::strerror(error));
}

// No message to or from the rank ends any more, except buffered ones.
void TcpWire::Fail(Peer& peer, const std::string& error) {
  if (!peer.error.empty()) return;
  peer.error = error;
  peer.failed = Clock::now();
  next_look_ = std::min(next_look_, peer.failed + kCulpritFirst);
  peer.connected = false;
  peer.handshake.reset();
  peer.retry = {};
  peer.socket = FileDescriptor();
  for (Outgoing& message : peer.queue)
    if (message.ends_when_sent) Finish(std::move(message.end));
  peer.queue.clear();
  peer.untaken.clear();
  peer.posted.clear();
  peer.receive.reset();
  if (peer.arriving != nullptr) std::erase(peer.early, peer.arriving);
  peer.arriving.reset();
  peer.left = 0;
  peer.paused = false;
  peer.stash.clear();
  ++failed_;
  ++events_;
}

void TcpWire::Lose(Peer& peer) {
  peer.lost = true;
  --failed_;
  ++events_;
  lost_.push_back({peer.rank, peer.error, peer.said_bye});
}

std::unique_ptr<Communicator> CreateTcpCommunicator(
    Bootstrap& bootstrap, Engine& engine, Members members, const wire::Settings& settings) {
  return wire::CreateWireWorld(
      "tcp", std::make_unique<TcpWire>(bootstrap, engine, settings), bootstrap, engine,
      std::move(members), settings.relays_from);
}

}  // namespace dtrun::ops::tcp
