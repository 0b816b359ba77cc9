#ifndef DTRUN_OPS_BOOTSTRAP_TCP_SOCKET_H_
#define DTRUN_OPS_BOOTSTRAP_TCP_SOCKET_H_

#include <string>

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
};

/// Listens at `place.host` only. Port 0: any free port. Stores the port in `place`. Throws Error
/// kSystem.
FileDescriptor ListenOn(TcpPlace& place, const std::string& listener);

/// Connects to a listening process. Returns -1 if no process listens there yet. Throws Error
/// kSystem for any other failure.
FileDescriptor ConnectTo(const TcpPlace& place, const std::string& listener);

/// Accepts the next waiting connection. Returns -1 if none waits.
FileDescriptor AcceptTcp(int listener);

/// The local address of a connection.
std::string OwnAddress(int socket);

/// 32 random bytes.
std::string RandomBytes();

}  // namespace dtrun::ops

#endif  // DTRUN_OPS_BOOTSTRAP_TCP_SOCKET_H_
