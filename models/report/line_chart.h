#ifndef DTRUN_MODELS_REPORT_LINE_CHART_H_
#define DTRUN_MODELS_REPORT_LINE_CHART_H_

#include <string>
#include <vector>

#include "models/report/axis.h"

namespace dtrun::models {

/// How a line looks, in a colour and a form: each can be told from the others without the colours.
enum class LineStyle { kFirst, kSecond, kIdeal };

struct ChartPoint {
  double x = 0, y = 0;  ///< where y is not finite the line is broken, and a cross tells it
  std::string tip;      ///< shown when one points at it
};

struct ChartLine {
  LineStyle style = LineStyle::kFirst;
  std::vector<ChartPoint> points;  ///< from left to right
};

struct LineChart {
  std::string description;  ///< one sentence, for those who do not see it
  Axis x, y;
  std::vector<ChartLine> lines;
};

/// The chart as an <svg> for the page, which brings the colours (page_style.h).
std::string ToSvg(const LineChart& chart);

/// A short piece of such a line, for a legend.
std::string Swatch(LineStyle style);

}  // namespace dtrun::models

#endif
