#ifndef DTRUN_LAUNCHER_HOST_CLOCK_H_
#define DTRUN_LAUNCHER_HOST_CLOCK_H_

#include <cstdint>

#include "base/trace_json.h"

namespace dtrun::launcher {

/// How the monotonic clock of another host stands to this one's, by questions and answers: the
/// answer was given at some moment between the two, and the shortest question tells the most
/// (Cristian's algorithm). Pure.
class HostClock {
 public:
  /// Asked and answered at these times of this host's clock, `theirs` in between of the other's.
  void Add(int64_t asked_ns, int64_t theirs_ns, int64_t answered_ns) {
    const int64_t half = (answered_ns - asked_ns) / 2;
    if (half < 0 || (looks_++ > 0 && half >= best_.uncertainty_ns)) return;
    best_ = {theirs_ns - (asked_ns + half), half};
  }

  int looks() const { return looks_; }
  const base::ClockOffset& offset() const { return best_; }

 private:
  base::ClockOffset best_;
  int looks_ = 0;
};

}  // namespace dtrun::launcher

#endif
