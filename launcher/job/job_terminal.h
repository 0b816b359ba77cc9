#ifndef DTRUN_LAUNCHER_JOB_JOB_TERMINAL_H_
#define DTRUN_LAUNCHER_JOB_JOB_TERMINAL_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "launcher/job/host_agents.h"
#include "launcher/output/output.h"
#include "launcher/output/progress_meter.h"
#include "launcher/support/poller.h"

namespace dtrun::launcher {

/// dtrun's own stdin on its way to a rank. It reads no more than the rank takes: at most kWindow
/// bytes are under way.
class JobInput {
 public:
  static constexpr size_t kWindow = 256 * 1024;

  /// `send` gets what was read, "" at the end.
  JobInput(Poller& poller, std::function<void(std::string bytes)> send);
  ~JobInput();
  JobInput(const JobInput&) = delete;
  JobInput& operator=(const JobInput&) = delete;

  /// The rank has taken so much, and will read more only if `open`.
  void Taken(size_t bytes, bool open);
  /// Called now and then: a terminal can be read by the job in its foreground alone.
  void Tick();

 private:
  void Update();
  void Read();

  Poller& poller_;
  std::function<void(std::string)> send_;
  size_t under_way_ = 0;
  bool ended_ = false, in_background_ = false;
};

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

/// --progress: asks the agents once a second how far the ranks are, and shows it.
class ProgressDisplay {
 public:
  ProgressDisplay(HostAgents& agents, Output& output) : agents_(agents), output_(output) {}
  ~ProgressDisplay() { output_.SetStatus(""); }
  ProgressDisplay(const ProgressDisplay&) = delete;
  ProgressDisplay& operator=(const ProgressDisplay&) = delete;

  /// Called now and then, twice a second or more often.
  void Tick(std::chrono::steady_clock::time_point now);

 private:
  HostAgents& agents_;
  Output& output_;
  ProgressMeter meter_;
  std::chrono::steady_clock::time_point asked_ = {}, said_ = {};
};

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_JOB_JOB_TERMINAL_H_
