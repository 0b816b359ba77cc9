#ifndef DTRUN_TESTS_SUPPORT_MANUAL_CLOCK_H_
#define DTRUN_TESTS_SUPPORT_MANUAL_CLOCK_H_

#include <atomic>

#include "base/process.h"

namespace dtrun::testing {

/// A clock that moves only with Advance. It begins at 1000 s. Thread-safe.
class ManualClock : public base::Clock {
 public:
  base::TimePoint Now() const override {
    const base::TimePoint now(base::Duration(now_.load()));
    ++looks_;
    return now;
  }
  void Advance(base::Duration by) { now_ += by.count(); }
  /// The number of calls of Now.
  int64_t looks() const { return looks_; }

 private:
  std::atomic<int64_t> now_{1'000'000'000'000};
  mutable std::atomic<int64_t> looks_{0};
};

}  // namespace dtrun::testing

#endif
