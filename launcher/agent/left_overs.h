#ifndef DTRUN_LAUNCHER_AGENT_LEFT_OVERS_H_
#define DTRUN_LAUNCHER_AGENT_LEFT_OVERS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "launcher/protocol/frame.h"

namespace dtrun::launcher {

/// Sends `signal` to the process group of `process`, unless it is this process's own group.
void SignalGroupOf(pid_t process, int signal);

/// Kills this user's processes on this host with DTRUN_JOB=`job` in their environment, except this
/// process.
void KillProcessesOf(const std::string& job);

/// Whether `process` cannot be the engine or its daemon on this host, which are started after this
/// process: it has ended, it has started this process, or it is older. The parent of a wrapper is
/// such a process if its daemon has ended: dtrun or process 1, whose other children are not of the
/// job.
bool IsOutsideOfJob(pid_t process);

/// Descendants of a process that may outlive it, with another environment and another session.
/// Remembers each one while it runs.
class LeftOvers {
 public:
  /// Adds the descendants of `process` (unless it IsOutsideOfJob) and forgets ended ones.
  void Look(pid_t process);
  /// Kills the remembered processes that still run.
  void Kill() const;

 private:
  std::map<pid_t, uint64_t> starts_;  // start time by process id
};

/// A kFlight frame for each flight record in `folder`, with the record unchanged.
std::vector<Frame> FlightFrames(const std::string& folder);

/// Passes the ranks' traces in `folder` to `use`, as kTrace frames of at most kMostBody bytes.
void ForEachTracePart(const std::string& folder, const std::function<void(Frame)>& use);

/// A kProgress frame from the flight records in `folder`.
Frame ProgressFrame(const std::string& folder);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_AGENT_LEFT_OVERS_H_
