#ifndef DTRUN_LAUNCHER_ENGINES_ENGINE_MESSAGES_H_
#define DTRUN_LAUNCHER_ENGINES_ENGINE_MESSAGES_H_

#include <functional>
#include <string>
#include <string_view>

#include "launcher/engines/launch_engine.h"
#include "launcher/support/poller.h"

namespace dtrun::launcher {

/// What the process that starts the ranks (mpirun), and the ssh that it starts, write to their
/// stderr: whole lines, so that none stands in a line of a rank or in the status line.
class EngineMessages {
 public:
  using Show = std::function<void(std::string_view lines)>;

  /// `show` gets lines with their ends, while `poller` waits. Throws LaunchError kInternal.
  EngineMessages(Poller& poller, const LaunchEngine& engine, bool show_idle_warnings, Show show);
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

  /// The lines that are events (EngineLine), the last MiB of them.
  const std::string& events() const { return events_; }

 private:
  // A line of so many bytes is not waited for.
  static constexpr size_t kLongest = 65536;
  static constexpr size_t kMostEvents = 1 << 20;

  bool ReadSome();  // false: nothing is there now
  void ShowLines();

  void Sort(std::string_view line, std::string& shown);

  Poller& poller_;
  const LaunchEngine& engine_;
  bool show_idle_warnings_;
  Show show_;
  int reader_ = -1, writer_ = -1;
  bool ended_ = false;  // nobody holds the other end
  std::string unfinished_, events_;
};

}  // namespace dtrun::launcher

#endif
