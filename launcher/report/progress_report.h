#ifndef DTRUN_LAUNCHER_REPORT_PROGRESS_REPORT_H_
#define DTRUN_LAUNCHER_REPORT_PROGRESS_REPORT_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/flight_record.h"
#include "base/launch_env.h"
#include "launcher/report/job_story.h"

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

/// The changes of a job with --restarts for the metrics.
struct JobMetrics {
  int ranks = 0;            ///< that the job has now
  int64_t losses = 0;       ///< how often it has lost ranks
  int64_t gains = 0;        ///< how often ranks have come
  int64_t recovery_ns = 0;  ///< time in which not all ranks worked
  int64_t steps_lost = 0;   ///< completed steps that were computed again
};
/// The changes at `now_ns` on the monotonic clock.
JobMetrics JobMetricsOf(const std::vector<Loss>& losses, int ranks, int64_t now_ns);

/// The metrics of all ranks as an OpenMetrics 1.0 exposition: one family after the other, labelled
/// by rank and host. `ranks` has one entry for each slot of `hosts`, by rank. `job`: with
/// --restarts. Pure.
std::string OpenMetricsText(
    const std::vector<RankMetrics>& ranks, const std::vector<base::HostSlots>& hosts,
    const std::optional<JobMetrics>& job = std::nullopt);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_REPORT_PROGRESS_REPORT_H_
