#include "ops/bootstrap/tcp_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::ops {
namespace {

FileDescriptor NewSocket(int family) {
  FileDescriptor made(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (made.get() < 0) ThrowErrno("socket");
  return made;
}

void SetNonBlocking(int socket) { ::fcntl(socket, F_SETFL, O_NONBLOCK); }

// Detects a silent host within 30 s. Sends small packets without delay.
void PrepareTcp(int socket) {
  const int on = 1, idle_s = 10, interval_s = 5, probes = 4, patience_ms = 30'000;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  ::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience_ms, sizeof patience_ms);
}

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses Resolve(const TcpPlace& place, const std::string& listener) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int error =
      ::getaddrinfo(place.host.c_str(), base::Text(place.port).c_str(), &hints, &found);
  if (error != 0)
    throw Error(
        ErrorCode::kSystem, base::Text(
                                "cannot resolve the host of ", listener, ", ", place.host, ": ",
                                ::gai_strerror(error)));
  return {found, &::freeaddrinfo};
}

[[noreturn]] void ThrowAt(const char* call, const TcpPlace& place, const std::string& listener) {
  ThrowErrno(base::Text(call, " of ", listener, " at ", place.host, ":", place.port));
}

}  // namespace

std::string TcpPlace::Text() const { return host.empty() ? "-" : base::Text(host, ' ', port); }

TcpPlace TcpPlace::Read(const std::string& text) {
  const size_t space = text.find(' ');
  const auto port =
      space == std::string::npos ? std::nullopt : base::ParseInteger(text.substr(space + 1));
  if (!port || *port < 1 || *port > 65535) return {};
  return {text.substr(0, space), static_cast<int>(*port)};
}

FileDescriptor ListenOn(TcpPlace& place, const std::string& listener) {
  const Addresses addresses = Resolve(place, listener);
  FileDescriptor socket = NewSocket(addresses->ai_family);
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0)
    ThrowAt("bind", place, listener);
  sockaddr_storage own = {};
  socklen_t length = sizeof own;
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length);
  place.port = ntohs(
      own.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(own).sin6_port
                                : reinterpret_cast<const sockaddr_in&>(own).sin_port);
  SetNonBlocking(socket.get());
  return socket;
}

FileDescriptor ConnectTo(const TcpPlace& place, const std::string& listener) {
  const Addresses addresses = Resolve(place, listener);
  FileDescriptor socket = NewSocket(addresses->ai_family);
  PrepareTcp(socket.get());
  if (::connect(socket.get(), addresses->ai_addr, addresses->ai_addrlen) != 0) {
    if (errno == ECONNREFUSED || errno == EINTR) return FileDescriptor();
    ThrowAt("connect", place, listener);
  }
  SetNonBlocking(socket.get());
  return socket;
}

FileDescriptor AcceptTcp(int listener) {
  FileDescriptor socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.get() >= 0) PrepareTcp(socket.get());
  return socket;
}

std::string OwnAddress(int socket) {
  sockaddr_storage own = {};
  socklen_t length = sizeof own;
  char name[NI_MAXHOST] = "";
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &length) != 0 ||
      ::getnameinfo(
          reinterpret_cast<const sockaddr*>(&own), length, name, sizeof name, nullptr, 0,
          NI_NUMERICHOST) != 0)
    ThrowErrno("getsockname");
  return name;
}

std::string RandomBytes() {
  std::string bytes(32, '\0');
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    ThrowErrno("getrandom");
  return bytes;
}

}  // namespace dtrun::ops
