#include "ops/bootstrap/local_socket.h"

#include <poll.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/bootstrap/bootstrap.h"

namespace dtrun::ops {

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

namespace {

// Of this thread. A thread_local variable would show in the library's dynamic symbols.
pthread_key_t KeyOfScope() {
  static const pthread_key_t key = [] {
    pthread_key_t made = 0;
    if (::pthread_key_create(&made, nullptr) != 0) ThrowErrno("pthread_key_create");
    return made;
  }();
  return key;
}

const AbandonScope::Why* InnermostScope() {
  return static_cast<const AbandonScope::Why*>(::pthread_getspecific(KeyOfScope()));
}

}  // namespace

AbandonScope::AbandonScope(Why why) : why_(std::move(why)), outer_(InnermostScope()) {
  ::pthread_setspecific(KeyOfScope(), &why_);
}

AbandonScope::~AbandonScope() { ::pthread_setspecific(KeyOfScope(), outer_); }

int MostOfWait(Deadline deadline) {
  constexpr int64_t kBetweenLooks = 20, kLongest = 1'000'000;
  const AbandonScope::Why* const scope = InnermostScope();
  if (scope != nullptr)
    if (const std::optional<Error> why = (*scope)()) throw *why;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  const int64_t most = scope != nullptr ? kBetweenLooks : kLongest;
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, most));
}

bool AwaitReady(int fd, short events, Deadline deadline) {
  for (;;) {
    const int most = MostOfWait(deadline);
    if (most <= 0) return false;
    pollfd poll_fd{fd, events, 0};
    const int ready = ::poll(&poll_fd, 1, most);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) ThrowErrno("poll");
  }
}

// Rank 0 listens on an abstract socket with a random name and gathers the name through the
// bootstrap. The others connect and send their ranks. An exchange then goes to rank 0 and back, one
// packet per segment: each rank sends its segment to rank 0, and rank 0 sends all segments to each
// rank. A packet carries the rank, the size and, unless the size is 0, the file descriptor.

namespace {

using base::Text;

struct Packet {
  int64_t rank = 0;
  uint64_t bytes = 0;
};

std::string RandomName() {
  unsigned char random[16];
  if (::getrandom(random, sizeof random, 0) != sizeof random) ThrowErrno("getrandom");
  std::string name = "dtrun-";
  for (unsigned char byte : random) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

FileDescriptor NewPacketSocket() {
  FileDescriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) ThrowErrno("socket");
  return fd;
}

void AwaitReadable(int fd, Deadline deadline, const std::string& what) {
  if (AwaitReady(fd, POLLIN, deadline)) return;
  throw Error(ErrorCode::kTimeout, Text("waited too long for ", what));
}

void Send(int socket, Packet packet, int fd) {
  iovec data{&packet, sizeof packet};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (packet.bytes > 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  while (::sendmsg(socket, &message, MSG_NOSIGNAL) < 0) {
    if (errno != EINTR) ThrowErrno("sendmsg to a rank of this host");
  }
}

struct Received {
  Packet packet;
  FileDescriptor fd;
};

Received Receive(int socket, Deadline deadline, const std::string& from) {
  AwaitReadable(socket, deadline, from);
  Received received;
  iovec data{&received.packet, sizeof received.packet};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t length = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (length < 0) ThrowErrno("recvmsg from " + from);
  if (length != sizeof received.packet) {
    throw Error(
        ErrorCode::kPeerLost, Text(from, " closed its connection while shared memory was set up"));
  }
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message);
      header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    received.fd = FileDescriptor(fd);
  }
  return received;
}

// The sockets of one rank, and the exchange over them.
class Star {
 public:
  // `peers` has, on rank 0, the socket of every other rank, by rank; elsewhere the socket to rank
  // 0.
  Star(int rank, int size, std::vector<FileDescriptor> peers, std::chrono::seconds timeout)
      : rank_(rank), size_(size), peers_(std::move(peers)), timeout_(timeout) {}

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::chrono::seconds timeout() const { return timeout_; }

  // Returns the packets of the other ranks, by rank: `bytes` and a descriptor, or 0 and none.
  std::vector<Received> AllGather(uint64_t bytes, int fd) {
    const Deadline deadline = std::chrono::steady_clock::now() + timeout_;
    std::vector<Received> all(static_cast<size_t>(size_));
    if (rank_ != 0) {
      Send(peers_[0].get(), {rank_, bytes}, fd);
      for (int i = 0; i < size_ - 1; ++i) {
        Received received = Receive(peers_[0].get(), deadline, "rank 0");
        all.at(static_cast<size_t>(received.packet.rank)) = std::move(received);
      }
      return all;
    }
    for (size_t peer = 1; peer < all.size(); ++peer)
      all[peer] = Receive(peers_[peer].get(), deadline, Text("rank ", peer));
    for (size_t peer = 1; peer < all.size(); ++peer) {
      Send(peers_[peer].get(), {0, bytes}, fd);
      for (size_t owner = 1; owner < all.size(); ++owner) {
        if (owner != peer) Send(peers_[peer].get(), all[owner].packet, all[owner].fd.get());
      }
    }
    return all;
  }

 private:
  int rank_, size_;
  std::vector<FileDescriptor> peers_;
  std::chrono::seconds timeout_;
};

class SocketExchange : public SegmentExchange {
 public:
  explicit SocketExchange(Star star) : star_(std::move(star)) {}

  int rank() const override { return star_.rank(); }
  int size() const override { return star_.size(); }

  std::vector<std::shared_ptr<Segment>> AllGather(std::shared_ptr<Segment> mine) override {
    std::vector<Received> received =
        star_.AllGather(mine == nullptr ? 0 : mine->bytes(), mine == nullptr ? -1 : mine->fd());
    std::vector<std::shared_ptr<Segment>> all(received.size());
    for (size_t owner = 0; owner < all.size(); ++owner) {
      const uint64_t bytes = received[owner].packet.bytes;
      if (bytes > 0) all[owner] = Segment::Map(std::move(received[owner].fd), bytes);
    }
    all[static_cast<size_t>(rank())] = std::move(mine);
    return all;
  }

  std::unique_ptr<SegmentExchange> ConnectAnother(Bootstrap& bootstrap) override {
    return ConnectSocketExchange(bootstrap, star_.timeout());
  }

 private:
  Star star_;
};

class SocketDescriptorExchange : public DescriptorExchange {
 public:
  explicit SocketDescriptorExchange(Star star) : star_(std::move(star)) {}

  std::vector<FileDescriptor> AllGather(int mine) override {
    std::vector<FileDescriptor> all;
    for (Received& received : star_.AllGather(mine < 0 ? 0 : 1, mine))
      all.push_back(std::move(received.fd));
    return all;
  }

 private:
  Star star_;
};

std::vector<FileDescriptor> AcceptPeers(int listener, int size, Deadline deadline) {
  std::vector<FileDescriptor> peers(static_cast<size_t>(size));
  for (int connected = 1; connected < size;) {
    AwaitReadable(listener, deadline, Text(size - connected, " of the other ranks of this host"));
    FileDescriptor peer(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (peer.get() < 0) ThrowErrno("accept");
    if (!TrustedPeer(peer.get())) continue;
    const int64_t rank = Receive(peer.get(), deadline, "a rank of this host").packet.rank;
    peers.at(static_cast<size_t>(rank)) = std::move(peer);
    ++connected;
  }
  return peers;
}

Star ConnectStar(Bootstrap& bootstrap, std::chrono::seconds timeout) {
  const Deadline deadline = std::chrono::steady_clock::now() + timeout;
  FileDescriptor socket = NewPacketSocket();
  std::string name;
  if (bootstrap.rank() == 0) {
    name = RandomName();
    const LocalAddress address(name);
    if (::bind(socket.get(), address.get(), address.length()) != 0)
      ThrowErrno("bind of an abstract unix socket");
    if (::listen(socket.get(), bootstrap.size()) != 0) ThrowErrno("listen");
  }
  name = bootstrap.AllGather(name)[0];
  std::vector<FileDescriptor> peers;
  if (bootstrap.rank() == 0) {
    peers = AcceptPeers(socket.get(), bootstrap.size(), deadline);
  } else {
    const LocalAddress address(name);
    if (::connect(socket.get(), address.get(), address.length()) != 0)
      ThrowErrno("connect to rank 0 of this host");
    Send(socket.get(), {bootstrap.rank(), 0}, -1);
    peers.push_back(std::move(socket));
  }
  return Star(bootstrap.rank(), bootstrap.size(), std::move(peers), timeout);
}

}  // namespace

std::unique_ptr<SegmentExchange> ConnectSocketExchange(
    Bootstrap& bootstrap, std::chrono::seconds timeout) {
  return std::make_unique<SocketExchange>(ConnectStar(bootstrap, timeout));
}

std::unique_ptr<DescriptorExchange> ConnectDescriptorExchange(
    Bootstrap& bootstrap, std::chrono::seconds timeout) {
  return std::make_unique<SocketDescriptorExchange>(ConnectStar(bootstrap, timeout));
}

}  // namespace dtrun::ops
