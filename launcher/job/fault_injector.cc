// A slow rank is stopped and continued in turn: it runs kSlice, then is stopped for (factor - 1)
// such slices.

#include "launcher/job/fault_injector.h"

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace dtrun::launcher {
namespace {

using std::chrono::milliseconds;
using Kind = Fault::Kind;

constexpr milliseconds kSlice{20}, kBetweenStepLooks{10}, kLongest{500};

}  // namespace

FaultInjector::FaultInjector(std::vector<Fault> faults, Time start) : start_(start) {
  for (Fault& fault : faults) planned_.push_back({.fault = std::move(fault)});
}

bool FaultInjector::IsDue(
    const Planned& planned, Time now, const std::vector<base::FlightProgress>& progress) const {
  const Fault& fault = planned.fault;
  if (!fault.step) return now - start_ >= fault.at;
  return std::any_of(progress.begin(), progress.end(), [&](const base::FlightProgress& rank) {
    return rank.rank == fault.rank && rank.step >= *fault.step;
  });
}

std::vector<FaultInjector::Action> FaultInjector::Take(
    Time now, const std::vector<base::FlightProgress>& progress) {
  std::vector<Action> actions;
  for (Planned& planned : planned_) {
    if (planned.has_begun && !planned.is_over && now >= planned.next) GoOn(planned, now, actions);
    if (planned.has_begun || !IsDue(planned, now, progress)) continue;
    planned.has_begun = true;
    const Fault& fault = planned.fault;
    planned.is_over = fault.kind == Kind::kKill || fault.kind == Kind::kDrop;
    planned.is_stopped = fault.kind == Kind::kStop;
    planned.next = now + (planned.is_stopped ? fault.duration : milliseconds(0));
    const int signal = fault.kind == Kind::kKill   ? SIGKILL
                       : fault.kind == Kind::kStop ? SIGSTOP
                       : fault.kind == Kind::kSlow ? SIGCONT
                                                   : 0;
    actions.push_back({fault.rank, signal, fault.host, fault.text});
  }
  return actions;
}

void FaultInjector::GoOn(Planned& planned, Time now, std::vector<Action>& actions) {
  const Fault& fault = planned.fault;
  planned.is_stopped = !planned.is_stopped;
  actions.push_back({fault.rank, planned.is_stopped ? SIGSTOP : SIGCONT});
  planned.is_over = fault.kind == Kind::kStop;
  const milliseconds stopped(
      std::llround(static_cast<double>(kSlice.count()) * (fault.factor - 1)));
  planned.next = now + (planned.is_stopped ? stopped : kSlice);
}

milliseconds FaultInjector::Pause(Time now) const {
  milliseconds pause = kLongest;
  for (const Planned& planned : planned_) {
    if (planned.is_over) continue;
    if (!planned.has_begun && planned.fault.step) pause = std::min(pause, kBetweenStepLooks);
    const Time next = planned.has_begun ? planned.next : start_ + planned.fault.at;
    if (planned.has_begun || !planned.fault.step)
      pause = std::min(pause, std::chrono::ceil<milliseconds>(std::max(next, now) - now));
  }
  return std::max(pause, milliseconds(1));
}

bool FaultInjector::wants_progress() const {
  return std::any_of(planned_.begin(), planned_.end(), [](const Planned& planned) {
    return !planned.has_begun && planned.fault.step.has_value();
  });
}

}  // namespace dtrun::launcher
