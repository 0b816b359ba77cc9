#include "runtime/parameter_server/server_job.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/bootstrap/local_socket.h"
#include "runtime/parameter_server/hmac_sha256.h"

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

constexpr int kStream = SOCK_STREAM | SOCK_CLOEXEC;

ops::LocalAddress LocalPlace(const std::string& job, int server) {
  return ops::LocalAddress(base::Text("dtrun.", job.substr(0, 64), ".ps.", server));
}

ops::FileDescriptor NewSocket(int family) {
  ops::FileDescriptor made(::socket(family, kStream, 0));
  if (made.get() < 0) ops::ThrowErrno("socket");
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

Addresses Resolve(const TcpPlace& place) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int error =
      ::getaddrinfo(place.host.c_str(), base::Text(place.port).c_str(), &hints, &found);
  if (error != 0)
    throw Error(
        ErrorCode::kSystem, base::Text(
                                "cannot resolve the host of a parameter server, ", place.host, ": ",
                                ::gai_strerror(error)));
  return {found, &::freeaddrinfo};
}

[[noreturn]] void ThrowAt(const char* call, const TcpPlace& place) {
  ops::ThrowErrno(base::Text(call, " of a parameter server at ", place.host, ":", place.port));
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

ops::FileDescriptor ListenLocally(const std::string& job, int server) {
  ops::FileDescriptor listener = NewSocket(AF_UNIX);
  const ops::LocalAddress place = LocalPlace(job, server);
  if (::bind(listener.get(), place.get(), place.length()) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0)
    ops::ThrowErrno(base::Text("bind of parameter server ", server));
  SetNonBlocking(listener.get());
  return listener;
}

ops::FileDescriptor ListenOn(TcpPlace& place) {
  const Addresses addresses = Resolve(place);
  ops::FileDescriptor listener = NewSocket(addresses->ai_family);
  const int on = 1;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(listener.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0)
    ThrowAt("bind", place);
  sockaddr_storage own = {};
  socklen_t length = sizeof own;
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&own), &length);
  place.port = ntohs(
      own.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(own).sin6_port
                                : reinterpret_cast<const sockaddr_in&>(own).sin_port);
  SetNonBlocking(listener.get());
  return listener;
}

ops::FileDescriptor ConnectLocally(const std::string& job, int server) {
  ops::FileDescriptor socket = NewSocket(AF_UNIX);
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

ops::FileDescriptor ConnectTo(const TcpPlace& place) {
  const Addresses addresses = Resolve(place);
  ops::FileDescriptor socket = NewSocket(addresses->ai_family);
  PrepareTcp(socket.get());
  if (::connect(socket.get(), addresses->ai_addr, addresses->ai_addrlen) != 0) {
    if (errno == ECONNREFUSED || errno == EINTR) return ops::FileDescriptor();
    ThrowAt("connect", place);
  }
  SetNonBlocking(socket.get());
  return socket;
}

ops::FileDescriptor AcceptFrom(int listener, bool local) {
  ops::FileDescriptor socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.get() < 0) return socket;
  if (local && !ops::TrustedPeer(socket.get())) return ops::FileDescriptor();
  if (!local) PrepareTcp(socket.get());
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
    ops::ThrowErrno("getsockname");
  return name;
}

std::string RandomBytes() {
  std::string bytes(32, '\0');
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    ops::ThrowErrno("getrandom");
  return bytes;
}

std::string ClientProof(const std::string& secret, const std::string& both) {
  return HmacSha256(secret, "dtrun parameter server: a rank" + both);
}

std::string ServerProof(const std::string& secret, const std::string& both) {
  return HmacSha256(secret, "dtrun parameter server: a server" + both);
}

}  // namespace dtrun::runtime
