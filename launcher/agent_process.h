#ifndef DTRUN_LAUNCHER_AGENT_PROCESS_H_
#define DTRUN_LAUNCHER_AGENT_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "launcher/poller.h"

namespace dtrun::launcher {

/// What a process says on its stderr.
class Complaints {
 public:
  /// Owns `file`, the end of the pipe to read from.
  Complaints(Poller& poller, int file);
  ~Complaints();
  Complaints(const Complaints&) = delete;
  Complaints& operator=(const Complaints&) = delete;

  /// Why it ended; the lines before are banners. "": it has said nothing.
  std::string LastLine() const;
  /// Reads to the end, or until nothing has come for a second.
  void Drain();

 private:
  bool Read();

  Poller& poller_;
  int file_;
  std::string text_;
};

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
