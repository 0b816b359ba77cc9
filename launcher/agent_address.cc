#include "launcher/agent_address.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/text.h"
#include "launcher/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::Text;

constexpr size_t kMostFiles = 2;

[[noreturn]] void Fail(const std::string& what, int file = -1) {
  const int error = errno;
  if (file >= 0) close(file);
  throw LaunchError(ExitCode::kInternal, Text(what, ": ", std::strerror(error)));
}

// The job's name is random, so nobody can take the place of its agents beforehand.
socklen_t AddressOf(const std::string& job, int host, sockaddr_un& address) {
  const std::string name = Text("dtrun.", job, ".", host);
  address = {};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

}  // namespace

int ListenForRanks(const std::string& job, int host) {
  const int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (file < 0) Fail("cannot make a socket");
  sockaddr_un address;
  const socklen_t length = AddressOf(job, host, address);
  if (bind(file, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(file, SOMAXCONN) != 0)
    Fail("cannot listen for the ranks of this host", file);
  return file;
}

int ConnectToAgent(const std::string& job, int host) {
  const int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (file < 0) Fail("cannot make a socket");
  sockaddr_un address;
  const socklen_t length = AddressOf(job, host, address);
  if (connect(file, reinterpret_cast<const sockaddr*>(&address), length) != 0)
    Fail("the agent of this host is not there", file);
  if (TrustedPeer(file) < 0) {
    errno = EPERM;
    Fail("the agent of this host belongs to another user", file);
  }
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
    Fail("cannot talk to the agent of this host");
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
