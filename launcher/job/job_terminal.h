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

/// Forwards dtrun's stdin to a rank. Reads ahead by at most kWindow bytes that the rank has not
/// taken.
class JobInput {
 public:
  static constexpr size_t kWindow = 256 * 1024;

  /// `send` gets the bytes; "" at the end of stdin.
  JobInput(Poller& poller, std::function<void(std::string bytes)> send);
  ~JobInput();
  JobInput(const JobInput&) = delete;
  JobInput& operator=(const JobInput&) = delete;

  /// The rank has taken `bytes` bytes. If `open` is false, the rank reads no more.
  void Taken(size_t bytes, bool open);
  /// Checks whether dtrun is in the foreground: only a foreground job can read a terminal. Call it
  /// now and then.
  void Tick();

 private:
  void Update();
  void Read();

  Poller& poller_;
  std::function<void(std::string)> send_;
  size_t under_way_ = 0;
  bool ended_ = false, in_background_ = false;
};

/// Handles Ctrl-Z: stops the ranks of all hosts, then this process. When this process continues, so
/// do the ranks.
class JobPause {
 public:
  explicit JobPause(HostAgents& agents) : agents_(agents) {}

  /// After SIGTSTP: asks the agents to stop the ranks.
  void Begin();
  /// After SIGCONT: continues the ranks.
  void Continue();
  /// Stops this process when the ranks have stopped, or after a second. Call it after each event.
  /// Returns how long this process was stopped.
  std::chrono::steady_clock::duration Tick();

 private:
  HostAgents& agents_;
  std::optional<std::chrono::steady_clock::time_point> stop_by_;
};

/// Handles --progress: asks the agents once a second for the progress of the ranks and shows it.
class ProgressDisplay {
 public:
  ProgressDisplay(HostAgents& agents, Output& output) : agents_(agents), output_(output) {}
  ~ProgressDisplay() { output_.SetStatus(""); }
  ProgressDisplay(const ProgressDisplay&) = delete;
  ProgressDisplay& operator=(const ProgressDisplay&) = delete;

  /// Call it at least twice a second.
  void Tick(std::chrono::steady_clock::time_point now);

 private:
  HostAgents& agents_;
  Output& output_;
  ProgressMeter meter_;
  std::chrono::steady_clock::time_point asked_ = {}, said_ = {};
};

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_JOB_JOB_TERMINAL_H_
