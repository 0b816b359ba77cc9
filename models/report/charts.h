#ifndef DTRUN_MODELS_REPORT_CHARTS_H_
#define DTRUN_MODELS_REPORT_CHARTS_H_

#include <optional>
#include <string>
#include <vector>

#include "models/report/run_report.h"

namespace dtrun::models {

/// The pictures of a report: each is a <figure> with a heading, a legend that has the last values,
/// the drawing, and a line of numbers. Empty when nothing was measured of what it shows.
std::string LossFigure(const std::vector<ReportEpoch>& epochs);
std::string AccuracyFigure(const std::vector<ReportEpoch>& epochs);
/// `example`: what an example is called, in the singular.
std::string RateFigure(const std::vector<ReportEpoch>& epochs, const std::string& example);
std::string TimeFigure(const std::vector<ReportRank>& ranks);
std::string ScalingFigure(const std::vector<ScalingRow>& rows, const std::string& example);

}  // namespace dtrun::models

#endif
