#ifndef DTRUN_MODELS_REPORT_CHARTS_H_
#define DTRUN_MODELS_REPORT_CHARTS_H_

#include <optional>
#include <string>
#include <vector>

#include "models/report/page.h"

namespace dtrun::models {

// --- Drawings: axes, lines and bars (drawing.cc)

struct Tick {
  double at = 0;
  std::string label;
};

/// One axis of a chart: values from `low` to `high`, low < high, with a label and ticks.
struct Axis {
  std::string label;  ///< with the unit
  double low = 0, high = 1;
  std::vector<Tick> ticks;

  /// The position of a value between 0 (low) and 1 (high).
  double Share(double value) const { return (value - low) / (high - low); }
};

/// The range of the finite values that were added.
struct Extent {
  double least = 0, most = 0;
  bool empty = true;

  void Add(double value);
};

/// Makes an axis from at most `extent.least` to at least `extent.most`. It has three to seven
/// ticks, at multiples of 1, 2 or 5 times a power of ten. An empty range, or a single value, gets
/// room around it.
///   0.21 .. 0.48  ->  0.2, 0.25, ... 0.5
Axis RoundAxis(const std::string& label, const Extent& extent);

/// As RoundAxis, for fractions that are shown in per cent. Stays between 0 and 100 %.
Axis PercentAxis(const std::string& label, const Extent& extent);

/// From 1 to `count`, with at most eight ticks at whole numbers, the first at 1.
Axis CountAxis(const std::string& label, int count);

/// From 0 to the base-2 logarithm of `most`, rounded up. Has at most seven ticks, at powers of two.
/// The labels are the powers themselves.
///   8  ->  0 "1", 1 "2", 2 "4", 3 "8"
Axis DoublingAxis(const std::string& label, double most);

/// The common parts of drawings with two axes. Positions are in the units of a drawing, which is
/// kDrawingWidth units wide. The page scales the drawing to the available width. On a phone, a unit
/// is a little less than a pixel.

inline constexpr double kDrawingWidth = 340;

/// The area of the values. The axes and their labels are outside it.
struct Frame {
  double left = 0, top = 0, width = 0, height = 0;
  double drawing_height = 0;

  double right() const { return left + width; }
  double bottom() const { return top + height; }
};

/// A frame of the usual height, with room for the labels of `y` on its left.
Frame FrameFor(const Axis& x, const Axis& y);

/// As FrameFor, with the height `height` and with `room` on its left.
Frame FrameOf(double room, double height);

/// Grid lines at the ticks of y, the lower edge with the ticks of x, and both labels.
std::string GridAndAxes(const Frame& frame, const Axis& x, const Axis& y);

/// The lower edge with the ticks of x, and vertical grid lines.
std::string UprightGrid(const Frame& frame, const Axis& x);

enum class Anchor { kStart, kMiddle, kEnd };
std::string TextAt(
    double x, double y, Anchor anchor, const std::string& name, const std::string& text);

/// The <svg> element of a drawing with this content.
std::string DrawingElement(
    const Frame& frame, const std::string& description, const std::string& content);

/// The colour and form of a line. The forms differ too, so that colours are not needed.
enum class LineStyle { kFirst, kSecond, kIdeal };

struct ChartPoint {
  double x = 0, y = 0;  ///< if y is not finite, the line has a gap with a cross
  std::string tip;      ///< shown under the pointer
};

struct ChartLine {
  LineStyle style = LineStyle::kFirst;
  std::vector<ChartPoint> points;  ///< from left to right
};

struct LineChart {
  std::string description;  ///< one sentence, for screen readers
  Axis x, y;
  std::vector<ChartLine> lines;
};

/// The chart as an <svg> for the page, which defines the colours (page.h).
std::string ToSvg(const LineChart& chart);

/// A short piece of a line, for a legend.
std::string Swatch(LineStyle style);

// --- Figures (charts.cc)

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
