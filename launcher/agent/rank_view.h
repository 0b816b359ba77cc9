#ifndef DTRUN_LAUNCHER_AGENT_RANK_VIEW_H_
#define DTRUN_LAUNCHER_AGENT_RANK_VIEW_H_

#include <sys/types.h>

#include <optional>
#include <string>

#include "launcher/support/host_system.h"

namespace dtrun::launcher {

/// The state of a rank that the agent can see without the rank's help: whether it waits in Init,
/// has joined the job, or is stopped. Also continues the rank's wrapper if a signal has stopped it.
class RankView {
 public:
  RankView() = default;
  /// `folder` is the job's folder on this host.
  RankView(const std::string& folder, int rank, pid_t wrapper);

  /// Sets the process of the rank's program. The view shows it until the program calls Init.
  void SetProgram(pid_t program) { process_ = program; }

  /// Returns the body of a kState frame if the state has changed. Called twice a second, and more
  /// often after the loss of a rank.
  std::optional<std::string> Look();

 private:
  bool ReadNote(const std::string& file);

  std::string note_;  // path from ShutdownNote
  pid_t wrapper_ = -1, process_ = -1;
  StoppedHelper stopped_wrapper_ = {};
  bool in_init_ = false, joined_ = false, stopped_ = false;
  int timeout_s_ = 0, warning_s_ = 0, epoch_ = 0;
  std::string told_;
};

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_AGENT_RANK_VIEW_H_
