#include "launcher/job_pause.h"

#include <signal.h>

namespace dtrun::launcher {

using Clock = std::chrono::steady_clock;

void JobPause::Begin() {
  stop_by_ = Clock::now() + std::chrono::seconds(1);
  agents_.Stop();
}

void JobPause::Continue() {
  stop_by_.reset();
  agents_.Continue();
}

// SIGTSTP would not stop a process whose shell is gone, and then the ranks would wait for ever.
Clock::duration JobPause::Tick() {
  if (!stop_by_) return {};
  const Clock::time_point now = Clock::now();
  if (!agents_.Stopped() && now < *stop_by_) return {};
  raise(SIGSTOP);
  Continue();
  return Clock::now() - now;
}

}  // namespace dtrun::launcher
