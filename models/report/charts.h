#ifndef DTRUN_MODELS_REPORT_CHARTS_H_
#define DTRUN_MODELS_REPORT_CHARTS_H_

#include <optional>
#include <string>
#include <vector>

#include "models/report/page.h"

namespace dtrun::models {

/// The pictures of a report: each is a <figure> with a heading, a legend that has the last values,
/// the drawing, and a line of numbers. Empty when nothing was measured of what it shows.
std::string LossFigure(const std::vector<ReportEpoch>& epochs);
std::string AccuracyFigure(const std::vector<ReportEpoch>& epochs);
/// `example`: what an example is called, in the singular.
std::string RateFigure(const std::vector<ReportEpoch>& epochs, const std::string& example);
std::string TimeFigure(const std::vector<ReportRank>& ranks);
std::string ScalingFigure(const std::vector<ScalingRow>& rows, const std::string& example);

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

#endif  // DTRUN_MODELS_REPORT_CHARTS_H_
