#ifndef DTRUN_RUNTIME_PARAMETER_SERVER_PEER_SOCKETS_H_
#define DTRUN_RUNTIME_PARAMETER_SERVER_PEER_SOCKETS_H_

#include <string>

#include "ops/segment.h"

namespace dtrun::runtime {

// How ranks and parameter servers reach each other: on one host by unix sockets in the abstract
// namespace, whose kernel says who is at the other end; between hosts by TCP, where both prove that
// they know the job's secret. All sockets are non-blocking and close with their process, so an end
// of file says that a peer is lost.

/// Where a server listens for other hosts: an address of its host, and a port.
struct TcpPlace {
  std::string host;
  int port = 0;

  /// "10.0.0.1 20000"; "-" for one that listens on its own host alone.
  std::string Text() const;
  static TcpPlace Read(const std::string& text);
};

/// Throws Error kSystem.
ops::FileDescriptor ListenLocally(const std::string& job, int server);
/// The same on `place.host` alone; port 0: any, which is filled in.
ops::FileDescriptor ListenOn(TcpPlace& place);

/// -1: nobody listens there yet. Throws Error kSystem (another reason; the server is another
/// user's).
ops::FileDescriptor ConnectLocally(const std::string& job, int server);
ops::FileDescriptor ConnectTo(const TcpPlace& place);

/// The next one that waits; -1: none, or (unix) one of another user, which is turned away.
ops::FileDescriptor AcceptFrom(int listener, bool local);

/// The own address of a TCP connection.
std::string OwnAddress(int socket);

/// 32 random bytes.
std::string RandomBytes();
/// What a peer that knows the secret answers to the two random texts of a connection.
std::string ClientProof(const std::string& secret, const std::string& both);
std::string ServerProof(const std::string& secret, const std::string& both);

}  // namespace dtrun::runtime

#endif
