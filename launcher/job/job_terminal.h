#ifndef DTRUN_LAUNCHER_JOB_JOB_TERMINAL_H_
#define DTRUN_LAUNCHER_JOB_JOB_TERMINAL_H_

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "base/flight_record.h"
#include "launcher/job/host_agents.h"
#include "launcher/output/output.h"
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

/// Computes rates from the progress of the ranks. Reads no clock: the caller passes the time.
class ProgressMeter {
 public:
  /// Adds the progress of a rank, seen at `now`.
  void Add(const base::FlightProgress& progress, std::chrono::steady_clock::time_point now);

  /// The progress of the job: "4 ranks running, step 120 (10.0/s), 5120 examples/s, slowest rank 1
  /// (waits 1 % of the time, the others 60 % and more)".
  ///
  /// - The step is the last one that all ranks have done.
  /// - Rates cover the last seconds: the lowest step rate of a rank, the examples of all ranks.
  /// - The slowest rank is the rank that the others wait for. It is named if it waits less than
  ///   every other rank by more than a tenth of the time.
  std::string Line(int running) const;

 private:
  struct Sample {
    base::FlightProgress progress;
    std::chrono::steady_clock::time_point time;
  };
  struct Rates {
    double steps = 0, examples = 0, waiting = 0;  // per second; waiting: a share of the time
  };
  static std::optional<Rates> RatesOf(const std::deque<Sample>& samples);
  std::string Slowest() const;

  std::map<int, std::deque<Sample>> samples_;  // by rank, oldest first
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
