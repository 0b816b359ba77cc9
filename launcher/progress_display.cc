#include "launcher/progress_display.h"

namespace dtrun::launcher {
namespace {

constexpr std::chrono::seconds kBetweenLooks{1};
constexpr std::chrono::seconds kBetweenLines{10};  // where nothing can be redrawn

}  // namespace

void ProgressDisplay::Tick(std::chrono::steady_clock::time_point now) {
  for (const base::FlightProgress& progress : agents_.TakeProgress()) meter_.Add(progress, now);
  if (now - asked_ < kBetweenLooks) return;
  if (said_ == std::chrono::steady_clock::time_point()) said_ = now;
  asked_ = now;
  agents_.AskProgress();
  const int running = agents_.running();
  if (running == 0) return;
  if (output_.SetStatus(meter_.Line(running)) || now - said_ < kBetweenLines) return;
  if (output_.Note(meter_.Line(running))) said_ = now;
}

}  // namespace dtrun::launcher
