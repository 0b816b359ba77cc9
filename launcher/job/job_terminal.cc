#include "launcher/job/job_terminal.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/text.h"

namespace dtrun::launcher {
namespace {

using base::Text;
using Clock = std::chrono::steady_clock;

}  // namespace

// ---- Input and pause ----------------------------------------------------------------------------

JobInput::JobInput(Poller& poller, std::function<void(std::string)> send)
    : poller_(poller), send_(std::move(send)) {
  Tick();
  Update();
}

JobInput::~JobInput() { poller_.Forget(STDIN_FILENO); }

void JobInput::Taken(size_t bytes, bool open) {
  under_way_ -= std::min(bytes, under_way_);
  ended_ = ended_ || !open;
  Update();
}

void JobInput::Tick() {
  const bool in_background = isatty(STDIN_FILENO) != 0 && tcgetpgrp(STDIN_FILENO) != getpgrp();
  if (in_background == std::exchange(in_background_, in_background)) return;
  Update();
}

// Other programs share stdin, so it stays blocking and is read only when poll finds data.
void JobInput::Update() {
  if (ended_ || in_background_ || under_way_ >= kWindow) return poller_.Forget(STDIN_FILENO);
  poller_.Watch(STDIN_FILENO, POLLIN, [this](short) { Read(); });
}

void JobInput::Read() {
  std::string bytes(std::min<size_t>(65536, kWindow - under_way_), '\0');
  const ssize_t got = read(STDIN_FILENO, bytes.data(), bytes.size());
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  Tick();
  if (got < 0 && in_background_) return;  // another job has the terminal now
  bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
  ended_ = got <= 0;
  under_way_ += bytes.size();
  Update();
  send_(std::move(bytes));
}

void JobPause::Begin() {
  stop_by_ = Clock::now() + std::chrono::seconds(1);
  agents_.Stop();
}

void JobPause::Continue() {
  stop_by_.reset();
  agents_.Continue();
}

// Uses SIGSTOP: SIGTSTP would not stop a process without a shell, and the ranks would wait for
// ever.
Clock::duration JobPause::Tick() {
  if (!stop_by_) return {};
  const Clock::time_point now = Clock::now();
  if (!agents_.Stopped() && now < *stop_by_) return {};
  raise(SIGSTOP);
  Continue();
  return Clock::now() - now;
}

// ---- Progress -----------------------------------------------------------------------------------

namespace {

// Rates cover this time.
constexpr std::chrono::seconds kWindow{5};
constexpr double kClearDifference = 0.10;

constexpr std::chrono::seconds kBetweenLooks{1};
constexpr std::chrono::seconds kBetweenLines{10};  // if the status line cannot be redrawn

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
  const double seconds = std::chrono::duration<double>(last.time - first.time).count();
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
