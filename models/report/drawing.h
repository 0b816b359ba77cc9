#ifndef DTRUN_MODELS_REPORT_DRAWING_H_
#define DTRUN_MODELS_REPORT_DRAWING_H_

#include <string>
#include <vector>

namespace dtrun::models {

struct Tick {
  double at = 0;
  std::string label;
};

/// One side of a chart: values from `low` to `high`, low < high, and what is written beside it.
struct Axis {
  std::string label;  ///< with the unit
  double low = 0, high = 1;
  std::vector<Tick> ticks;

  /// Where between 0 (low) and 1 (high) a value lies.
  double Share(double value) const { return (value - low) / (high - low); }
};

/// The smallest and the largest of the finite ones.
struct Extent {
  double least = 0, most = 0;
  bool empty = true;

  void Add(double value);
};

/// From at most `extent.least` to at least `extent.most`, with three to seven ticks at multiples of
/// 1, 2 or 5 times a power of ten. A single value, or none, gets room around it.
///   0.21 .. 0.48  ->  0.2, 0.25, ... 0.5
Axis RoundAxis(const std::string& label, const Extent& extent);

/// As RoundAxis, for fractions shown in per cent; never beyond 0 and 100 %.
Axis PercentAxis(const std::string& label, const Extent& extent);

/// 1 .. count, with ticks at whole numbers, at most seven of them, the first at 1.
Axis CountAxis(const std::string& label, int count);

/// The logarithms to base 2 of 1 .. `most`, with ticks at powers of two that show the number
/// itself, at most seven of them.
///   8  ->  0 "1", 1 "2", 2 "4", 3 "8"
Axis DoublingAxis(const std::string& label, double most);

/// What pictures with two axes share. Places are in the units of a drawing, which is kDrawingWidth
/// wide; the page scales it to the room there is, so that on a phone a unit is a little less than a
/// pixel.

inline constexpr double kDrawingWidth = 340;

/// Where values are drawn; the rest of the drawing is for the axes and their labels.
struct Frame {
  double left = 0, top = 0, width = 0, height = 0;
  double drawing_height = 0;

  double right() const { return left + width; }
  double bottom() const { return top + height; }
};

/// A frame of the usual height, with room for the labels of `y` on its left.
Frame FrameFor(const Axis& x, const Axis& y);

/// As FrameFor, of height `height`, with `room` on its left.
Frame FrameOf(double room, double height);

/// Lines at the ticks of y; the lower edge, with the ticks of x; both labels.
std::string GridAndAxes(const Frame& frame, const Axis& x, const Axis& y);

/// The lower edge alone, with the ticks of x and lines above them.
std::string UprightGrid(const Frame& frame, const Axis& x);

enum class Anchor { kStart, kMiddle, kEnd };
std::string TextAt(
    double x, double y, Anchor anchor, const std::string& name, const std::string& text);

/// The <svg> of a drawing with this content.
std::string DrawingElement(
    const Frame& frame, const std::string& description, const std::string& content);

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

/// The chart as an <svg> for the page, which brings the colours (page.h).
std::string ToSvg(const LineChart& chart);

/// A short piece of such a line, for a legend.
std::string Swatch(LineStyle style);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_REPORT_DRAWING_H_
