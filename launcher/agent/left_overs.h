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

/// Sends `signal` to the process group of `process`, unless it is this process's own.
void SignalGroupOf(pid_t process, int signal);

/// Kills this user's processes on this host that have DTRUN_JOB=`job` in their environment, but not
/// this process: what programs of the job have left behind.
void KillProcessesOf(const std::string& job);

/// Processes that come from another one and may outlive it, with an environment and a session of
/// their own: remembered while they can be found.
class LeftOvers {
 public:
  /// Adds all that comes from `process`, if it is one.
  void Look(pid_t process);
  /// Kills those that still run.
  void Kill() const;

 private:
  std::map<pid_t, uint64_t> starts_;  // when each has started
};

/// What an agent tells of the flight records that lie in `folder`: each as it is.
std::vector<Frame> FlightFrames(const std::string& folder);

/// Hands over what the ranks have written for the timeline into `folder`, in parts.
void ForEachTracePart(const std::string& folder, const std::function<void(Frame)>& use);

/// How far the ranks on this host are, while they run.
Frame ProgressFrame(const std::string& folder);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_AGENT_LEFT_OVERS_H_
