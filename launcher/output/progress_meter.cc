#include "launcher/output/progress_meter.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/text.h"

namespace dtrun::launcher {
namespace {

using base::Text;
using Seconds = std::chrono::duration<double>;

// Rates cover this time.
constexpr std::chrono::seconds kWindow{5};
constexpr double kClearDifference = 0.10;

std::string Fixed(double value) {
  char text[32];
  std::snprintf(text, sizeof text, value < 100 ? "%.1f" : "%.0f", value);
  return text;
}

int Percent(double share) { return static_cast<int>(std::lround(100 * share)); }

}  // namespace

void ProgressMeter::Add(
    const base::FlightProgress& progress, std::chrono::steady_clock::time_point now) {
  std::deque<Sample>& samples = samples_[progress.rank];
  // The program counts anew, for example in its next training.
  const bool anew = !samples.empty() && (progress.step < samples.back().progress.step ||
                                         progress.examples < samples.back().progress.examples);
  if (anew) samples.clear();
  samples.push_back({progress, now});
  while (samples.size() > 2 && now - samples[1].time >= kWindow) samples.pop_front();
}

std::optional<ProgressMeter::Rates> ProgressMeter::RatesOf(const std::deque<Sample>& samples) {
  if (samples.size() < 2) return std::nullopt;
  const Sample &first = samples.front(), &last = samples.back();
  const double seconds = Seconds(last.time - first.time).count();
  if (seconds <= 0) return std::nullopt;
  const auto rate = [&](auto from, auto to) { return static_cast<double>(to - from) / seconds; };
  return Rates{
      .steps = rate(first.progress.step, last.progress.step),
      .examples = rate(first.progress.examples, last.progress.examples),
      .waiting =
          std::clamp(rate(first.progress.waited_ns, last.progress.waited_ns) * 1e-9, 0.0, 1.0)};
}

std::string ProgressMeter::Slowest() const {
  std::vector<std::pair<double, int>> waiting;
  for (const auto& [rank, samples] : samples_)
    if (const auto rates = RatesOf(samples); rates && rates->steps > 0)
      waiting.push_back({rates->waiting, rank});
  if (waiting.size() < 2) return "";
  std::sort(waiting.begin(), waiting.end());
  const auto [least, rank] = waiting[0];
  if (waiting[1].first - least <= kClearDifference) return "";
  return Text(
      ", slowest rank ", rank, " (waits ", Percent(least), " % of the time, the others ",
      Percent(waiting[1].first), " %", waiting.size() > 2 ? " and more)" : ")");
}

std::string ProgressMeter::Line(int running) const {
  std::string line = Text(running, running == 1 ? " rank running" : " ranks running");
  uint64_t step = UINT64_MAX;
  double steps_per_s = 0, examples_per_s = 0;
  bool known = false;
  for (const auto& [rank, samples] : samples_) {
    step = std::min(step, samples.back().progress.step);
    const auto rates = RatesOf(samples);
    if (!rates) continue;
    steps_per_s = known ? std::min(steps_per_s, rates->steps) : rates->steps;
    examples_per_s += rates->examples;
    known = true;
  }
  if (samples_.empty() || step == 0) return line;
  line += Text(", step ", step);
  if (known) line += Text(" (", Fixed(steps_per_s), "/s)");
  if (examples_per_s > 0) line += Text(", ", Fixed(examples_per_s), " examples/s");
  return line + Slowest();
}

}  // namespace dtrun::launcher
