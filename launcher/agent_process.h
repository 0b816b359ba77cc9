#ifndef DTRUN_LAUNCHER_AGENT_PROCESS_H_
#define DTRUN_LAUNCHER_AGENT_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace dtrun::launcher {

/// The process of an agent, or of the ssh that leads to one.
struct AgentProcess {
  pid_t process;
  int channel;     ///< a socket: its stdin and stdout
  int complaints;  ///< a pipe: its stderr
};

/// Starts it in a session of its own. Throws LaunchError kInternal.
AgentProcess StartAgentProcess(const std::vector<std::string>& words);

}  // namespace dtrun::launcher

#endif
