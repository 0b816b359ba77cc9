#include "launcher/job/job_terminal.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace dtrun::launcher {

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

using Clock = std::chrono::steady_clock;

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

namespace {

constexpr std::chrono::seconds kBetweenLooks{1};
constexpr std::chrono::seconds kBetweenLines{10};  // if the status line cannot be redrawn

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
