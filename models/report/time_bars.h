#ifndef DTRUN_MODELS_REPORT_TIME_BARS_H_
#define DTRUN_MODELS_REPORT_TIME_BARS_H_

#include <string>
#include <vector>

#include "models/report/run_report.h"

namespace dtrun::models {

/// The parts of a RankTime, in the order of the bars.
struct TimePart {
  const char* name;   ///< "compute"
  const char* style;  ///< the class that the page gives a colour
  double RankTime::*seconds;
};
const std::vector<TimePart>& TimeParts();

/// One stacked bar per rank, from above, as an <svg> for the page.
std::string TimeBars(const std::vector<ReportRank>& ranks);

/// All ranks together; `ranks` is not empty.
RankTime SumOf(const std::vector<ReportRank>& ranks);

}  // namespace dtrun::models

#endif
