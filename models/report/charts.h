#ifndef DTRUN_MODELS_REPORT_CHARTS_H_
#define DTRUN_MODELS_REPORT_CHARTS_H_

#include <optional>
#include <string>
#include <vector>

#include "models/report/page.h"

namespace dtrun::models {

/// The figures of a report. Each is a <figure> with a heading, a legend with the last values, the
/// drawing, and a line of numbers. Empty if there are no measurements to show.
std::string LossFigure(const std::vector<ReportEpoch>& epochs);
std::string AccuracyFigure(const std::vector<ReportEpoch>& epochs);
/// `example` is the name of an example, in the singular.
std::string RateFigure(const std::vector<ReportEpoch>& epochs, const std::string& example);
std::string TimeFigure(const std::vector<ReportRank>& ranks);
std::string ScalingFigure(const std::vector<ScalingRow>& rows, const std::string& example);

/// The parts of a RankTime, in the order of the bars.
struct TimePart {
  const char* name;   ///< "compute"
  const char* style;  ///< a class that has a colour in the page's style
  double RankTime::*seconds;
};
const std::vector<TimePart>& TimeParts();

/// One stacked bar per rank, from top to bottom, as an <svg> for the page.
std::string TimeBars(const std::vector<ReportRank>& ranks);

/// The sum over all ranks. `ranks` must not be empty.
RankTime SumOf(const std::vector<ReportRank>& ranks);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_REPORT_CHARTS_H_
