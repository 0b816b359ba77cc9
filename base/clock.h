#ifndef DTRUN_BASE_CLOCK_H_
#define DTRUN_BASE_CLOCK_H_

#include <chrono>

namespace dtrun::base {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::steady_clock::time_point;

/// Where deadlines take the time from: passed in, so that a test can own it. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
};

class SteadyClock : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace dtrun::base

#endif
