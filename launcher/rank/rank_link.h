#ifndef DTRUN_LAUNCHER_RANK_RANK_LINK_H_
#define DTRUN_LAUNCHER_RANK_RANK_LINK_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/protocol/exit_record.h"
#include "launcher/protocol/frame.h"

namespace dtrun::launcher {

/// What a wrapper has of the agent of its host.
class RankLink {
 public:
  /// Hands the agent the ends from which the program's stdout and stderr can be read. Throws
  /// LaunchError kInternal when there is no agent, or it did not expect this rank.
  RankLink(const std::string& job, int host, int rank, int out, int err);
  ~RankLink();
  RankLink(const RankLink&) = delete;
  RankLink& operator=(const RankLink&) = delete;

  /// Of the job, on this host.
  const std::string& folder() const { return folder_; }
  /// What the program reads from its stdin; -1: nothing. Closed by CloseInput.
  int input() const { return input_; }
  void CloseInput();

  /// Readable when the agent has said something.
  int file() const { return connection_; }
  /// What it has said; nothing: it is gone.
  std::optional<std::vector<Frame>> Hear();

  /// An agent that is gone meanwhile does not matter: it takes this process with it.
  void SayStarted(pid_t program);
  /// `at_ns`: when that was, by MonotonicNs. `alone`: the signal that ended the program was not
  /// sent to the rank's process group.
  void SayEnded(
      RankEnd end, int value, int64_t at_ns, int64_t address_limit = 0, bool alone = false);
  /// Whether the program takes notices.
  void SayTakes(bool takes);

 private:
  Frame Welcome();

  int connection_;
  int rank_;
  int input_ = -1;
  FrameReader reader_;
  std::string folder_;
};

}  // namespace dtrun::launcher

#endif
