#ifndef DTRUN_LAUNCHER_REPORT_PROGRESS_REPORT_H_
#define DTRUN_LAUNCHER_REPORT_PROGRESS_REPORT_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/flight_record.h"
#include "base/launch_env.h"

namespace dtrun::launcher {

/// The average time of a rank's steps, with its parts, in one line:
///   "rank 1: 120 steps of 10.2 ms: 8.1 ms of computing, 2.1 ms of communication that it did not
///   hide, 1.4 ms of that waiting for late ranks; 102.2 MB in 25 buckets a step"
/// "": the rank has reduced no gradients.
std::string StepLine(const base::FlightProgress& progress);

/// The totals of the same values for --report-json; null: the rank has reduced no gradients.
nlohmann::json StepJson(const base::FlightProgress& progress);

/// The state of a rank for the metrics.
struct RankMetrics {
  bool running = false;  ///< its program runs
  base::FlightProgress progress = {};
};

/// The metrics of all ranks as an OpenMetrics 1.0 exposition: one family after the other, labelled
/// by rank and host. `ranks` has one entry for each slot of `hosts`, by rank. Pure.
std::string OpenMetricsText(
    const std::vector<RankMetrics>& ranks, const std::vector<base::HostSlots>& hosts);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_REPORT_PROGRESS_REPORT_H_
