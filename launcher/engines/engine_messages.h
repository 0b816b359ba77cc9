#ifndef DTRUN_LAUNCHER_ENGINES_ENGINE_MESSAGES_H_
#define DTRUN_LAUNCHER_ENGINES_ENGINE_MESSAGES_H_

#include <functional>
#include <string>
#include <string_view>

#include "launcher/support/poller.h"

namespace dtrun::launcher {

/// Open MPI warns of this although nothing is wrong and nobody can do anything about it:
///
///   [h1:812] plm:rsh: Warning: setpgid(831,831) failed in parent with errno=Permission denied(13)
///     An ssh has called exec before mpirun got to put it into a group of its own, where it was
///     going to put itself.
///   [warn] Epoll MOD(1) on fd 27 failed. Old events were 6; ...: Bad file descriptor
///     libevent is late to learn that a connection which has ended is closed.
bool IsIdleWarning(std::string_view line);

/// What the process that starts the ranks (mpirun), and the ssh that it starts, write to their
/// stderr: whole lines, so that none stands in a line of a rank or in the status line.
class EngineMessages {
 public:
  using Show = std::function<void(std::string_view lines)>;

  /// `show` gets lines with their ends, while `poller` waits. Throws LaunchError kInternal.
  EngineMessages(Poller& poller, bool show_idle_warnings, Show show);
  ~EngineMessages();
  EngineMessages(const EngineMessages&) = delete;
  EngineMessages& operator=(const EngineMessages&) = delete;

  /// The end to write to, which is closed in other programs. -1 once it was handed over.
  int writer() const { return writer_; }
  /// The process has its own copy.
  void HandedOver();

  /// While paused, whoever writes much has to wait.
  void SetPaused(bool paused);
  /// Shows what was written until now, an unfinished line too. Others may still hold the end to
  /// write to.
  void Finish();

 private:
  // A line of so many bytes is not waited for.
  static constexpr size_t kLongest = 65536;

  bool ReadSome();  // false: nothing is there now
  void ShowLines();

  Poller& poller_;
  bool show_idle_warnings_;
  Show show_;
  int reader_ = -1, writer_ = -1;
  bool ended_ = false;  // nobody holds the other end
  std::string unfinished_;
};

}  // namespace dtrun::launcher

#endif
