#ifndef DTRUN_LAUNCHER_OPEN_METRICS_H_
#define DTRUN_LAUNCHER_OPEN_METRICS_H_

#include <string>
#include <vector>

#include "base/flight_record.h"
#include "base/launch_env.h"

namespace dtrun::launcher {

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

#endif
