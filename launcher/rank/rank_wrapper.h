#ifndef DTRUN_LAUNCHER_RANK_RANK_WRAPPER_H_
#define DTRUN_LAUNCHER_RANK_RANK_WRAPPER_H_

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

/// Runs the program of a rank to its end, as a child in the same process group. Meanwhile it obeys
/// the agent's frames from `link`, and reports the end to `link`. `out` and `err` become the
/// program's stdout and stderr and are closed here. Returns the exit code for mpirun. If a signal
/// killed the program, this process dies of the same signal.
///
/// Exit code 75 (pre-empted and saved) is reported to the agent only: mpirun would kill the ranks
/// that are still saving. For an `expendable` rank, mpirun sees code 0 after any end of the
/// program, because the job goes on without the rank. A program that cannot start gives 126 or 127
/// in any case.
int RunProgram(
    const std::vector<std::string>& words, RankLink& link, int out, int err,
    bool expendable = false);

/// The signal that tells a program about the coming end of its job. The program starts with this
/// signal ignored, so that a program without a handler is not killed.
int NoticeSignal();

/// Whether a process takes notices, from the text of its /proc/PID/status. It has a handler for the
/// signal, or it blocks the signal to wait for it (signalfd, or sigwait in another thread).
bool TakesNotices(const std::string& status);

/// The other processes in this process group that take notices: the program of a rank, or children
/// of a script.
std::vector<pid_t> NoticeTakers();

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_RANK_RANK_WRAPPER_H_
