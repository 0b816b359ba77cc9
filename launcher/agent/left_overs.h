#ifndef DTRUN_LAUNCHER_AGENT_LEFT_OVERS_H_
#define DTRUN_LAUNCHER_AGENT_LEFT_OVERS_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "launcher/protocol/frame.h"

namespace dtrun::launcher {

/// Sends `signal` to the process group of `process`, unless it is this process's own.
void SignalGroupOf(pid_t process, int signal);

/// Kills this user's processes on this host that have DTRUN_JOB=`job` in their environment, but not
/// this process: what programs of the job have left behind.
void KillProcessesOf(const std::string& job);

/// What an agent tells of the flight records that lie in `folder`: each as it is.
std::vector<Frame> FlightFrames(const std::string& folder);

/// Hands over what the ranks have written for the timeline into `folder`, in parts.
void ForEachTracePart(const std::string& folder, const std::function<void(Frame)>& use);

/// How far the ranks on this host are, while they run.
Frame ProgressFrame(const std::string& folder);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_AGENT_LEFT_OVERS_H_
