#ifndef DTRUN_OPS_BOOTSTRAP_TCP_SOCKET_H_
#define DTRUN_OPS_BOOTSTRAP_TCP_SOCKET_H_

#include <string>
#include <vector>

#include "base/listen_filter.h"
#include "ops/bootstrap/local_socket.h"
#include "ops/bootstrap/segment.h"

namespace dtrun::ops {

// TCP sockets between processes of a job. All sockets are non-blocking and close with their
// process. `listener` names the listening process in errors, such as "a parameter server".

/// The address and port where a process listens for other hosts.
struct TcpPlace {
  std::string host;
  int port = 0;

  /// "10.0.0.1 20000"; "-" if there is no host.
  std::string Text() const;
  static TcpPlace Read(const std::string& text);
  /// "10.0.0.1:20000"; "[::1]:20000"
  std::string Name() const;
  bool operator==(const TcpPlace&) const = default;
};

/// Listens at `place.host` only. Port 0: any free port. Stores the port in `place`. Throws Error
/// kSystem.
FileDescriptor ListenOn(TcpPlace& place, const std::string& listener);

/// Listens at the first free port of `ports`. `skipped`: that many ports come last, so that the
/// ranks of a host do not all try the same port first.
FileDescriptor ListenIn(
    const base::PortRange& ports, int skipped, TcpPlace& place, const std::string& listener);

/// Tries all addresses of the host. Returns -1 if none of them answers before the deadline, and
/// stores the reason in `cause`. Throws Error kSystem if this process can open no socket.
FileDescriptor TryConnect(
    const TcpPlace& place, const std::string& listener, Deadline deadline, std::string& cause);

/// Accepts the next waiting connection. Returns -1 if none waits.
FileDescriptor AcceptTcp(int listener);

/// True if an errno of a connection says that its other end is gone or cannot be reached any more.
/// Pure.
bool HasPeerEnded(int error);

/// The local address of a connection.
std::string OwnAddress(int socket);

/// The numeric address of the other end and its port. No host if the connection has ended.
TcpPlace PeerOf(int socket);

/// True for a numeric address of this host's loopback, and for an IPv4 address of a network in
/// `networks`. Pure.
bool IsTrusted(const std::string& address, const std::vector<base::AddressBlock>& networks);

/// 32 random bytes.
std::string RandomBytes();

}  // namespace dtrun::ops

#endif  // DTRUN_OPS_BOOTSTRAP_TCP_SOCKET_H_
