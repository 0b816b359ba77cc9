#ifndef DTRUN_LAUNCHER_AGENT_PROCESS_H_
#define DTRUN_LAUNCHER_AGENT_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace dtrun::launcher {

/// A child that speaks with this process.
struct AgentProcess {
  pid_t process;
  int channel;     ///< its stdin and stdout
  int complaints;  ///< its stderr
};

/// Starts `words`, in a session of its own. Throws LaunchError kInternal.
AgentProcess StartAgent(const std::vector<std::string>& words);

}  // namespace dtrun::launcher

#endif
