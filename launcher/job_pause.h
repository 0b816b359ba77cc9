#ifndef DTRUN_LAUNCHER_JOB_PAUSE_H_
#define DTRUN_LAUNCHER_JOB_PAUSE_H_

#include <chrono>
#include <optional>

#include "launcher/host_agents.h"

namespace dtrun::launcher {

/// Ctrl-Z: the ranks of all hosts stop, then this process; when it goes on, so do they.
class JobPause {
 public:
  explicit JobPause(HostAgents& agents) : agents_(agents) {}

  /// SIGTSTP has come: asks the agents to stop the ranks.
  void Begin();
  /// SIGCONT has come.
  void Continue();
  /// Called whenever something was heard: stops this process once the ranks have stopped, or a
  /// second has passed. Returns how long it was stopped.
  std::chrono::steady_clock::duration Tick();

 private:
  HostAgents& agents_;
  std::optional<std::chrono::steady_clock::time_point> stop_by_;
};

}  // namespace dtrun::launcher

#endif
