#ifndef DTRUN_RUNTIME_PARAMETER_SERVER_SERVER_JOB_H_
#define DTRUN_RUNTIME_PARAMETER_SERVER_SERVER_JOB_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/process.h"
#include "ops/bootstrap/segment.h"

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

/// What a process knows of the job's parameter servers: ranks [0, servers) hold the variables.
struct ServerJob {
  std::string job;  ///< random, unique
  int rank = 0, size = 1, servers = 1;
  std::vector<int> host_of_rank;        ///< by rank
  std::vector<std::string> host_names;  ///< by host
  TcpPlace first;                       ///< of server 0; of no use where all share a host
  std::string secret;                   ///< that ranks of several hosts prove to know
  /// Whether the launcher knows that a rank has ended, which is then not waited for.
  std::function<bool(int rank)> has_ended = [](int) { return false; };
  std::chrono::seconds timeout{600};  ///< of each wait for a peer that should answer
  base::LogSink log = [](base::LogLevel, const std::string&) {};

  bool several_hosts() const { return host_names.size() > 1; }
  bool shares_host(int other) const {
    return host_of_rank[static_cast<size_t>(rank)] == host_of_rank[static_cast<size_t>(other)];
  }
  /// "rank 2 on h1"
  std::string Name(int of_rank) const;
};

/// Throws Error kPeerLost. A little later, since the connections of a process end before it does:
/// who launched the job is to see that one's end first, not that of those who fail for want of it.
[[noreturn]] void ThrowPeerLost(const std::string& text);
/// The same for a server.
[[noreturn]] void ThrowServerLost(const ServerJob& job, int server);

/// How far a training is, as its first server knows it.
struct ServerProgress {
  uint64_t steps_done = 0, steps = 0;
  uint64_t workers = 0;   ///< connected now
  uint64_t finished = 0;  ///< 1: no step and no checkpoint will follow
};

/// Where a server's time went, and what it did.
struct ServerStatistics {
  uint64_t updates = 0, pulls = 0;
  uint64_t repeated_steps = 0, lost_workers = 0;
  double update_s = 0;  ///< in the optimizer
  double copy_s = 0;    ///< giving values to ranks
  double cpu_s = 0;     ///< of the server's thread, all together
};

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_PARAMETER_SERVER_SERVER_JOB_H_
