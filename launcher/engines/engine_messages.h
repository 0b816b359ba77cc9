#ifndef DTRUN_LAUNCHER_ENGINES_ENGINE_MESSAGES_H_
#define DTRUN_LAUNCHER_ENGINES_ENGINE_MESSAGES_H_

#include <functional>
#include <string>
#include <string_view>

#include "launcher/engines/launch_engine.h"
#include "launcher/support/poller.h"

namespace dtrun::launcher {

/// Forwards to stderr the words of the engine's process (mpirun) and of the ssh that it starts:
/// whole lines, so that no message interrupts a rank's line or the status line.
class EngineMessages {
 public:
  using Show = std::function<void(std::string_view lines)>;

  /// `show` gets complete lines while `poller` waits. Throws LaunchError kInternal.
  EngineMessages(Poller& poller, const LaunchEngine& engine, bool show_idle_warnings, Show show);
  ~EngineMessages();
  EngineMessages(const EngineMessages&) = delete;
  EngineMessages& operator=(const EngineMessages&) = delete;

  /// The write end, closed on exec; -1 after HandedOver.
  int writer() const { return writer_; }
  /// Closes the write end here: the process has its own copy.
  void HandedOver();

  /// While paused, a process that writes much has to wait.
  void SetPaused(bool paused);
  /// Takes the output so far without waiting for the poller.
  void Update();
  /// Shows all output so far, including an unfinished line. Other processes may still hold the
  /// write end.
  void Finish();

  /// The lines of kind EngineLine::kEvent, at most the last MiB.
  const std::string& events() const { return events_; }

 private:
  // A longer unfinished line is shown as it is.
  static constexpr size_t kLongest = 65536;
  static constexpr size_t kMostEvents = 1 << 20;

  bool ReadSome();  // false: no data now
  void ShowLines();

  void Sort(std::string_view line, std::string& shown);

  Poller& poller_;
  const LaunchEngine& engine_;
  bool show_idle_warnings_;
  Show show_;
  int reader_ = -1, writer_ = -1;
  bool ended_ = false;      // no process holds the write end
  bool in_fences_ = false;  // within a message between two lines of EngineLine::kFence
  std::string unfinished_, events_;
};

}  // namespace dtrun::launcher

#endif
