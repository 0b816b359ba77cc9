#ifndef DTRUN_TESTS_SUPPORT_MANUAL_CLOCK_H_
#define DTRUN_TESTS_SUPPORT_MANUAL_CLOCK_H_

#include <atomic>

#include "base/clock.h"

namespace dtrun::testing {

/// A clock that stands still until it is told to go on. Thread-safe. It begins at 1000 s.
class ManualClock : public base::Clock {
 public:
  base::TimePoint Now() const override { return base::TimePoint(base::Duration(now_.load())); }
  void Advance(base::Duration by) { now_ += by.count(); }

 private:
  std::atomic<int64_t> now_{1'000'000'000'000};
};

}  // namespace dtrun::testing

#endif
