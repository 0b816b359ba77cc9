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
#include "ops/bootstrap/tcp_socket.h"

namespace dtrun::runtime {

// Connections between ranks and parameter servers. On one host, they use unix sockets in the
// abstract namespace, and the kernel identifies the user of the peer. Between hosts, they use TCP,
// and both sides prove that they know the job's secret. All sockets are non-blocking and close with
// their process, so an end of file means that the peer is lost.

/// The name of a parameter server in errors of TCP sockets.
inline constexpr char kListener[] = "a parameter server";

/// Listens on the unix socket of `server`. Throws Error kSystem.
ops::FileDescriptor ListenLocally(const std::string& job, int server);

/// Connects to the unix socket of `server`. Returns -1 if no process listens there yet. Throws
/// Error kSystem for any other failure, and if a process of another user listens there.
ops::FileDescriptor ConnectLocally(const std::string& job, int server);

/// Accepts the next waiting connection. Returns -1 if none waits. Closes a unix connection from
/// another user, and returns -1.
ops::FileDescriptor AcceptFrom(int listener, bool local);

/// The proof that its sender knows the secret. `both` is the random bytes of both sides.
std::string ClientProof(const std::string& secret, const std::string& both);
std::string ServerProof(const std::string& secret, const std::string& both);

/// The description of the job's parameter servers for one process. Ranks [0, servers) are servers
/// and hold the variables.
struct ServerJob {
  std::string job;  ///< a random, unique name
  int rank = 0, size = 1, servers = 1;
  bool evaluator = false;               ///< the last rank is no worker, but evaluates
  std::vector<int> host_of_rank;        ///< by rank
  std::vector<std::string> host_names;  ///< by host
  ops::TcpPlace first;                  ///< of server 0; unused if all ranks share a host
  std::string secret;                   ///< known to all ranks; proven between hosts
  /// Returns true if the launcher knows that the rank has ended. No server waits for such a rank.
  std::function<bool(int rank)> has_ended = [](int) { return false; };
  std::chrono::seconds timeout{600};  ///< of each wait for a peer's answer
  base::LogSink log = [](base::LogLevel, const std::string&) {};

  bool several_hosts() const { return host_names.size() > 1; }
  bool shares_host(int other) const {
    return host_of_rank[static_cast<size_t>(rank)] == host_of_rank[static_cast<size_t>(other)];
  }
  /// "rank 2 on h1"
  std::string Name(int of_rank) const;
};

/// Throws Error kPeerLost after a short delay. The connections of a process end before the process
/// itself. The delay lets the launcher see the end of the culprit before the failures of its peers.
[[noreturn]] void ThrowPeerLost(const std::string& text);
/// Throws this error for a lost server.
[[noreturn]] void ThrowServerLost(const ServerJob& job, int server);

/// The progress of a training, as the first server knows it.
struct ServerProgress {
  uint64_t steps_done = 0, steps = 0;
  uint64_t workers = 0;   ///< connected now
  uint64_t finished = 0;  ///< 1: no step and no checkpoint will follow
};

/// Counts of a server's work, and the time that the work took.
struct ServerStatistics {
  uint64_t updates = 0, pulls = 0;
  uint64_t repeated_steps = 0, lost_workers = 0;
  double update_s = 0;  ///< in the optimizer
  double copy_s = 0;    ///< copying values for ranks
  double cpu_s = 0;     ///< total CPU time of the server's thread
};

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_PARAMETER_SERVER_SERVER_JOB_H_
