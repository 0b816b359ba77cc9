#ifndef DTRUN_LAUNCHER_OUTPUT_PROGRESS_METER_H_
#define DTRUN_LAUNCHER_OUTPUT_PROGRESS_METER_H_

#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "base/flight_record.h"

namespace dtrun::launcher {

/// Computes rates from the progress of the ranks. Reads no clock: the caller passes the time.
class ProgressMeter {
 public:
  /// Adds the progress of a rank, seen at `now`.
  void Add(const base::FlightProgress& progress, std::chrono::steady_clock::time_point now);

  /// The progress of the job: "4 ranks running, step 120 (10.0/s), 5120 examples/s, slowest rank 1
  /// (waits 1 % of the time, the others 60 % and more)".
  ///
  /// - The step is the last one that all ranks have done.
  /// - Rates cover the last seconds: the lowest step rate of a rank, the examples of all ranks.
  /// - The slowest rank is the rank that the others wait for. It is named if it waits less than
  ///   every other rank by more than a tenth of the time.
  std::string Line(int running) const;

 private:
  struct Sample {
    base::FlightProgress progress;
    std::chrono::steady_clock::time_point time;
  };
  struct Rates {
    double steps = 0, examples = 0, waiting = 0;  // per second; waiting: a share of the time
  };
  static std::optional<Rates> RatesOf(const std::deque<Sample>& samples);
  std::string Slowest() const;

  std::map<int, std::deque<Sample>> samples_;  // by rank, oldest first
};

}  // namespace dtrun::launcher

#endif
