#ifndef DTRUN_LAUNCHER_AGENT_RANK_VIEW_H_
#define DTRUN_LAUNCHER_AGENT_RANK_VIEW_H_

#include <sys/types.h>

#include <optional>
#include <string>

#include "launcher/support/host_system.h"

namespace dtrun::launcher {

/// What an agent sees of a rank without the rank's help: whether it waits in Init, has joined the
/// job, or is stopped. Also continues the rank's wrapper when something else has stopped it.
class RankView {
 public:
  RankView() = default;
  /// `folder`: of the job on this host.
  RankView(const std::string& folder, int rank, pid_t wrapper);

  /// The program runs. Until the program calls Init, this process stands for it.
  void SetProgram(pid_t program) { process_ = program; }

  /// Called twice a second: the body of a kState frame if something has changed.
  std::optional<std::string> Look();

 private:
  bool ReadNote(const std::string& file);

  std::string note_;  // ShutdownNote
  pid_t wrapper_ = -1, process_ = -1;
  StoppedHelper stopped_wrapper_ = {};
  bool in_init_ = false, joined_ = false, stopped_ = false;
  int timeout_s_ = 0, warning_s_ = 0;
  std::string told_;
};

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_AGENT_RANK_VIEW_H_
