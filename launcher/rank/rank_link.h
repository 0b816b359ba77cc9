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

/// A wrapper's connection to the agent of its host.
class RankLink {
 public:
  /// Hands the agent the read ends of the program's stdout and stderr. Throws LaunchError kInternal
  /// if there is no agent, or if the agent does not expect this rank.
  RankLink(const std::string& job, int host, int rank, int out, int err);
  ~RankLink();
  RankLink(const RankLink&) = delete;
  RankLink& operator=(const RankLink&) = delete;

  /// The job's folder on this host.
  const std::string& folder() const { return folder_; }
  /// The descriptor for the program's stdin; -1: no input. CloseInput closes it.
  int input() const { return input_; }
  void CloseInput();

  /// The connection's descriptor, readable when frames of the agent have come.
  int file() const { return connection_; }
  /// The frames that have come; nullopt: the agent is gone.
  std::optional<std::vector<Frame>> Hear();

  /// The Say functions ignore errors: an agent that ends kills this process too.
  void SayStarted(pid_t program);
  /// `at_ns` is the time of the end, from MonotonicNs. `alone`: the signal that ended the program
  /// was not sent to the rank's process group.
  void SayEnded(
      RankEnd end, int value, int64_t at_ns, int64_t address_limit = 0, bool alone = false);
  /// Reports whether the program takes notices.
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
