#ifndef DTRUN_LAUNCHER_PROGRESS_DISPLAY_H_
#define DTRUN_LAUNCHER_PROGRESS_DISPLAY_H_

#include <chrono>

#include "launcher/host_agents.h"
#include "launcher/output.h"
#include "launcher/progress_meter.h"

namespace dtrun::launcher {

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

#endif
