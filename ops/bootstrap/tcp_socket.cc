#include "ops/bootstrap/tcp_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
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

// One end of a connection. An IPv4 address that a socket of IPv6 shows is given as such.
TcpPlace EndOf(int socket, decltype(&::getsockname) end) {
  constexpr char kMapped[] = "::ffff:";
  sockaddr_storage found = {};
  socklen_t length = sizeof found;
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  if (end(socket, reinterpret_cast<sockaddr*>(&found), &length) != 0 ||
      ::getnameinfo(
          reinterpret_cast<const sockaddr*>(&found), length, host, sizeof host, port, sizeof port,
          NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return {};
  std::string name = host;
  if (name.starts_with(kMapped) && name.find('.') != std::string::npos)
    name.erase(0, sizeof kMapped - 1);
  return {name, static_cast<int>(base::ParseInteger(port).value_or(0))};
}

[[noreturn]] void ThrowAt(const char* call, const TcpPlace& place, const std::string& listener) {
  ThrowErrno(base::Text(call, " of ", listener, " at ", place.Name()));
}

}  // namespace

std::string TcpPlace::Text() const { return host.empty() ? "-" : base::Text(host, ' ', port); }

std::string TcpPlace::Name() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return is_v6 ? base::Text('[', host, "]:", port) : base::Text(host, ':', port);
}

TcpPlace TcpPlace::Read(const std::string& text) {
  const size_t space = text.find(' ');
  const auto port =
      space == std::string::npos ? std::nullopt : base::ParseInteger(text.substr(space + 1));
  if (!port || *port < 1 || *port > 65535) return {};
  return {text.substr(0, space), static_cast<int>(*port)};
}

namespace {

// Returns -1 and sets errno if the place cannot be bound.
FileDescriptor TryListen(TcpPlace& place, const std::string& listener) {
  const Addresses addresses = Resolve(place, listener);
  FileDescriptor socket = NewSocket(addresses->ai_family);
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0)
    return FileDescriptor();
  sockaddr_storage own = {};
  socklen_t length = sizeof own;
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length);
  place.port = ntohs(
      own.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(own).sin6_port
                                : reinterpret_cast<const sockaddr_in&>(own).sin_port);
  SetNonBlocking(socket.get());
  return socket;
}

}  // namespace

FileDescriptor ListenOn(TcpPlace& place, const std::string& listener) {
  FileDescriptor socket = TryListen(place, listener);
  if (socket.get() < 0) ThrowAt("bind", place, listener);
  return socket;
}

FileDescriptor ListenIn(
    const base::PortRange& ports, int skipped, TcpPlace& place, const std::string& listener) {
  const int count = ports.last - ports.first + 1;
  for (int i = 0; i < count; ++i) {
    place.port = ports.first + (skipped + i) % count;
    FileDescriptor socket = TryListen(place, listener);
    if (socket.get() >= 0) return socket;
    if (errno != EADDRINUSE) ThrowAt("bind", place, listener);
  }
  throw Error(
      ErrorCode::kSystem, base::Text(
                              "no port of ", base::ShowPortRange(ports), " is free at ", place.host,
                              " for ", listener, "; expected one for each rank of the host"));
}

FileDescriptor TryConnect(
    const TcpPlace& place, const std::string& listener, Deadline deadline, std::string& cause) {
  Addresses addresses(nullptr, &::freeaddrinfo);
  try {
    addresses = Resolve(place, listener);
  } catch (const Error& error) {
    cause = error.what();
    return FileDescriptor();
  }
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    FileDescriptor socket = NewSocket(each->ai_family);
    PrepareTcp(socket.get());
    SetNonBlocking(socket.get());
    int error = ::connect(socket.get(), each->ai_addr, each->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      socklen_t length = sizeof error;
      if (!AwaitReady(socket.get(), POLLOUT, deadline)) {
        error = ETIMEDOUT;
      } else if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
        error = errno;
      }
    }
    // A connection to a free port of this host can meet itself (RFC 9293, section 3.5). It would
    // occupy the port.
    if (error == 0 && PeerOf(socket.get()) == EndOf(socket.get(), &::getsockname))
      error = ECONNREFUSED;
    if (error == 0) return socket;
    cause = std::strerror(error);
  }
  return FileDescriptor();
}

bool HasPeerEnded(int error) {
  return error == ECONNRESET || error == EPIPE || error == ETIMEDOUT || error == EHOSTUNREACH ||
         error == ENETUNREACH;
}

FileDescriptor AcceptTcp(int listener) {
  FileDescriptor socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.get() >= 0) PrepareTcp(socket.get());
  return socket;
}

std::string OwnAddress(int socket) {
  const TcpPlace own = EndOf(socket, &::getsockname);
  if (own.host.empty()) ThrowErrno("getsockname");
  return own.host;
}

TcpPlace PeerOf(int socket) { return EndOf(socket, &::getpeername); }

bool IsTrusted(const std::string& address, const std::vector<base::AddressBlock>& networks) {
  constexpr base::AddressBlock kLoopback = {127u << 24, 255u << 24};
  in_addr parsed = {};
  if (::inet_pton(AF_INET, address.c_str(), &parsed) != 1) return address == "::1";
  const uint32_t number = ntohl(parsed.s_addr);
  return kLoopback.Has(number) || std::any_of(
                                      networks.begin(), networks.end(),
                                      [&](const auto& network) { return network.Has(number); });
}

std::string RandomBytes() {
  std::string bytes(32, '\0');
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    ThrowErrno("getrandom");
  return bytes;
}

}  // namespace dtrun::ops
