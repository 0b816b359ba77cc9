#ifndef DTRUN_LAUNCHER_AGENT_RANK_START_H_
#define DTRUN_LAUNCHER_AGENT_RANK_START_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace dtrun::launcher {

/// How the wrapper of a rank was started, so that the agent can start it again.
class RankStart {
 public:
  RankStart() = default;
  /// Reads the command, the environment and the folder with which running process `wrapper` was
  /// started. Empty if the system does not tell.
  static RankStart Of(pid_t wrapper);
  /// This command, in this process's environment with `variables` (NAME=value), in `folder`.
  RankStart(
      std::vector<std::string> command, const std::vector<std::string>& variables,
      std::string folder);

  /// Starts the command as a child of this process, in a process group of its own. It dies with
  /// this process. The values in `changed` (NAME=value) replace variables of the start. Throws
  /// LaunchError kInternal.
  void Again(const std::vector<std::string>& changed) const;

 private:
  std::vector<std::string> command_, environment_;
  std::string folder_;
};

/// Removes the files in job folder `folder` that the earlier process of `rank` has left, so that
/// they do not count for its next process.
void ForgetNotes(const std::string& folder, int rank);

/// Takes notice of the ends of this process's children.
void ReapChildren();

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_AGENT_RANK_START_H_
