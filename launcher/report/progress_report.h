#ifndef DTRUN_LAUNCHER_REPORT_PROGRESS_REPORT_H_
#define DTRUN_LAUNCHER_REPORT_PROGRESS_REPORT_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/flight_record.h"
#include "base/launch_env.h"

namespace dtrun::launcher {

/// Where the time of a rank's steps went, on average, in one line:
///   "rank 1: 120 steps of 10.2 ms: 8.1 ms of computing, 2.1 ms of communication that it did not
///   hide, 1.4 ms of that waiting for late ranks; 102.2 MB in 25 buckets a step"
/// "" of one that has reduced nothing.
std::string StepLine(const base::FlightProgress& progress);

/// The same sums for --report-json; null of one that has reduced nothing.
nlohmann::json StepJson(const base::FlightProgress& progress);

/// How far a rank is, for a metric.
struct RankMetrics {
  bool running = false;  ///< its program
  base::FlightProgress progress = {};
};

/// The metrics of all ranks (by rank, as many as `hosts` have slots) as an OpenMetrics 1.0
/// exposition: a family after the other, labelled by rank and host. Pure.
std::string OpenMetricsText(
    const std::vector<RankMetrics>& ranks, const std::vector<base::HostSlots>& hosts);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_REPORT_PROGRESS_REPORT_H_
