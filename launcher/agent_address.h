#ifndef DTRUN_LAUNCHER_AGENT_ADDRESS_H_
#define DTRUN_LAUNCHER_AGENT_ADDRESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace dtrun::launcher {

// How the wrapper of a rank finds the agent of its host, and how each knows that the other is the
// same user's: an abstract socket, which belongs to no file system and goes with its process.

/// A socket at which the agent of host number `host` of job `job` listens. Throws LaunchError
/// kInternal.
int ListenForRanks(const std::string& job, int host);

/// A connection to that agent. Throws LaunchError kInternal when there is none, or it is not this
/// user's.
int ConnectToAgent(const std::string& job, int host);

/// The process at the other end of a connection, if it is this user's; -1 if not.
pid_t TrustedPeer(int connection);

/// Sends `bytes` with these descriptors, two at most. Throws LaunchError kInternal.
void SendWithFiles(int connection, const std::string& bytes, const std::vector<int>& files);

/// Receives at most `most` bytes, appends the descriptors that come with them. 0: the other side is
/// gone; negative: nothing there yet.
ssize_t ReceiveWithFiles(int connection, char* bytes, size_t most, std::vector<int>& files);

}  // namespace dtrun::launcher

#endif
