// Rank 0 listens on an abstract socket with a random name and tells the name through the bootstrap;
// the others connect and say who they are. An exchange then goes up and down this star, one packet
// per segment: each rank sends its own to rank 0, rank 0 sends all of them to each. A packet
// carries the rank, the size and, unless the size is 0, the file descriptor.

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/local_socket.h"
#include "ops/segment_exchange.h"

namespace dtrun::ops {
namespace {

using base::Text;

struct Packet {
  int64_t rank;
  uint64_t bytes;
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

FileDescriptor NewSocket() {
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

class SocketExchange : public SegmentExchange {
 public:
  // `peers`: on rank 0 the socket of every other rank, by rank; elsewhere the one to rank 0.
  SocketExchange(
      int rank, int size, std::vector<FileDescriptor> peers, std::chrono::seconds timeout)
      : rank_(rank), size_(size), peers_(std::move(peers)), timeout_(timeout) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::vector<std::shared_ptr<Segment>> AllGather(std::shared_ptr<Segment> mine) override {
    const Deadline deadline = std::chrono::steady_clock::now() + timeout_;
    return rank_ == 0 ? GatherAndScatter(std::move(mine), deadline)
                      : SendAndReceive(std::move(mine), deadline);
  }

  std::unique_ptr<SegmentExchange> ConnectAnother(Bootstrap& bootstrap) override {
    return ConnectSocketExchange(bootstrap, timeout_);
  }

 private:
  std::vector<std::shared_ptr<Segment>> GatherAndScatter(
      std::shared_ptr<Segment> mine, Deadline deadline) {
    std::vector<std::shared_ptr<Segment>> all(static_cast<size_t>(size_));
    all[0] = std::move(mine);
    for (size_t peer = 1; peer < all.size(); ++peer) {
      Received received = Receive(peers_[peer].get(), deadline, Text("rank ", peer));
      if (received.packet.bytes > 0)
        all[peer] = Segment::Map(std::move(received.fd), received.packet.bytes);
    }
    for (size_t peer = 1; peer < all.size(); ++peer) {
      for (size_t owner = 0; owner < all.size(); ++owner) {
        if (owner != peer)
          SendSegment(peers_[peer].get(), static_cast<int>(owner), all[owner].get());
      }
    }
    return all;
  }

  std::vector<std::shared_ptr<Segment>> SendAndReceive(
      std::shared_ptr<Segment> mine, Deadline deadline) {
    SendSegment(peers_[0].get(), rank_, mine.get());
    std::vector<std::shared_ptr<Segment>> all(static_cast<size_t>(size_));
    for (int i = 0; i < size_ - 1; ++i) {
      Received received = Receive(peers_[0].get(), deadline, "rank 0");
      if (received.packet.bytes > 0) {
        all.at(static_cast<size_t>(received.packet.rank)) =
            Segment::Map(std::move(received.fd), received.packet.bytes);
      }
    }
    all[static_cast<size_t>(rank_)] = std::move(mine);
    return all;
  }

  static void SendSegment(int socket, int owner, const Segment* segment) {
    Send(
        socket, {owner, segment == nullptr ? 0 : segment->bytes()},
        segment == nullptr ? -1 : segment->fd());
  }

  int rank_, size_;
  std::vector<FileDescriptor> peers_;
  std::chrono::seconds timeout_;
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

}  // namespace

std::unique_ptr<SegmentExchange> ConnectSocketExchange(
    Bootstrap& bootstrap, std::chrono::seconds timeout) {
  const Deadline deadline = std::chrono::steady_clock::now() + timeout;
  FileDescriptor socket = NewSocket();
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
  return std::make_unique<SocketExchange>(
      bootstrap.rank(), bootstrap.size(), std::move(peers), timeout);
}

}  // namespace dtrun::ops
