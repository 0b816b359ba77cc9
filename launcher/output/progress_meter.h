#ifndef DTRUN_LAUNCHER_OUTPUT_PROGRESS_METER_H_
#define DTRUN_LAUNCHER_OUTPUT_PROGRESS_METER_H_

#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "base/flight_record.h"

namespace dtrun::launcher {

/// Makes rates of what the ranks tell of their progress. Pure, but for what it has been told.
class ProgressMeter {
 public:
  /// What a rank's record said, seen at `now`.
  void Add(const base::FlightProgress& progress, std::chrono::steady_clock::time_point now);

  /// "4 ranks running, step 120 (10.0/s), 5120 examples/s, slowest rank 1 (waits 1 % of the time,
  /// the others 60 % and more)". Rates are those of the last seconds, over all ranks. The step is
  /// the last one that all have done. The slowest rank is the one for which the others wait, named
  /// where it waits less than every other by more than a tenth of the time.
  std::string Line(int running) const;

 private:
  struct Sample {
    base::FlightProgress progress;
    std::chrono::steady_clock::time_point time;
  };
  struct Rates {
    double steps = 0, examples = 0, waiting = 0;  // per second; a share of the time
  };
  static std::optional<Rates> RatesOf(const std::deque<Sample>& samples);
  std::string Slowest() const;

  std::map<int, std::deque<Sample>> samples_;  // by rank, oldest first
};

}  // namespace dtrun::launcher

#endif
