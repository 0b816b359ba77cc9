#include <algorithm>
#include <cmath>

#include "models/report/charts.h"
#include "models/report/markup.h"

namespace dtrun::models {
namespace {

constexpr double kLetter = 6.6;  // generous mean width of a digit, at the page's 12 units
constexpr double kAbove = 26, kBelow = 40, kRight = 14;

std::string Line(const std::string& name, double x1, double y1, double x2, double y2) {
  return Element(
      "line", {{"class", name},
               {"x1", Length(x1)},
               {"y1", Length(y1)},
               {"x2", Length(x2)},
               {"y2", Length(y2)}});
}

double WidestLabel(const Axis& axis) {
  size_t letters = 1;
  for (const Tick& tick : axis.ticks) letters = std::max(letters, tick.label.size());
  return static_cast<double>(letters) * kLetter;
}

double XOf(const Frame& frame, const Axis& x, const Tick& tick) {
  return frame.left + x.Share(tick.at) * frame.width;
}

std::string LowerEdge(const Frame& frame, const Axis& x) {
  std::string edge = Line("axis", frame.left, frame.bottom(), frame.right(), frame.bottom());
  for (const Tick& tick : x.ticks) {
    const double at = XOf(frame, x, tick);
    edge += Line("axis", at, frame.bottom(), at, frame.bottom() + 4);
    edge += TextAt(at, frame.bottom() + 17, Anchor::kMiddle, "tick", tick.label);
  }
  return edge +
         TextAt(
             frame.left + frame.width / 2, frame.bottom() + 34, Anchor::kMiddle, "label", x.label);
}

}  // namespace

Frame FrameOf(double room, double height) {
  return {room, kAbove, kDrawingWidth - room - kRight, height, kAbove + height + kBelow};
}

Frame FrameFor(const Axis& x, const Axis& y) {
  Frame frame = FrameOf(WidestLabel(y) + 12, 170);
  // The last label of x is centred at its tick, so half of it may extend to the right.
  if (!x.ticks.empty())
    frame.width -=
        std::max(0.0, static_cast<double>(x.ticks.back().label.size()) * kLetter / 2 - kRight);
  return frame;
}

std::string TextAt(
    double x, double y, Anchor anchor, const std::string& name, const std::string& text) {
  static constexpr const char* kAnchors[] = {"start", "middle", "end"};
  return Element(
      "text",
      {{"class", name},
       {"x", Length(x)},
       {"y", Length(y)},
       {"text-anchor", kAnchors[static_cast<int>(anchor)]}},
      Escape(text));
}

std::string GridAndAxes(const Frame& frame, const Axis& x, const Axis& y) {
  std::string grid;
  for (const Tick& tick : y.ticks) {
    const double at = frame.top + (1 - y.Share(tick.at)) * frame.height;
    grid += Line("grid", frame.left, at, frame.right(), at);
    grid += TextAt(frame.left - 6, at + 4, Anchor::kEnd, "tick", tick.label);
  }
  return grid + LowerEdge(frame, x) + TextAt(0, 12, Anchor::kStart, "label", y.label);
}

std::string UprightGrid(const Frame& frame, const Axis& x) {
  std::string grid;
  for (const Tick& tick : x.ticks) {
    const double at = XOf(frame, x, tick);
    grid += Line("grid", at, frame.top, at, frame.bottom());
  }
  return grid + LowerEdge(frame, x);
}

std::string DrawingElement(
    const Frame& frame, const std::string& description, const std::string& content) {
  return Element(
      "svg",
      {{"class", "drawing"},
       {"viewBox", "0 0 " + Length(kDrawingWidth) + " " + Length(frame.drawing_height)},
       {"role", "img"},
       {"aria-label", description}},
      content);
}

namespace {

constexpr int kMostTicks = 7;
constexpr double kMostShown = 1e300;  // keeps a drawing's arithmetic finite

// The smallest of 1, 2, 5, 10, 20, ... (and 0.5, 0.2, ...) that is not below `step`.
double RoundUp(double step) {
  const double power = std::pow(10, std::floor(std::log10(step)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= step * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

// Returns a range of positive length that a double can divide into steps.
Extent WithRoom(const Extent& extent) {
  if (extent.empty) return {0, 1, false};
  const double length = extent.most - extent.least;
  const double size = std::max(std::abs(extent.least), std::abs(extent.most));
  if (length > 1e-9 * size) return extent;
  const double room = size > 0 ? size / 10 : 1;
  return {extent.least - room, extent.most + room, false};
}

// The number of digits that makes the labels of ticks differ.
int DigitsFor(double step, double most) {
  const double size = std::max(std::abs(most), step);
  return std::clamp(static_cast<int>(std::floor(std::log10(size / step))) + 2, 2, 15);
}

}  // namespace

void Extent::Add(double value) {
  if (!std::isfinite(value)) return;
  value = std::clamp(value, -kMostShown, kMostShown);
  least = empty ? value : std::min(least, value);
  most = empty ? value : std::max(most, value);
  empty = false;
}

Axis RoundAxis(const std::string& label, const Extent& extent) {
  const Extent room = WithRoom(extent);
  const double step = RoundUp((room.most - room.least) / (kMostTicks - 2));
  const double first = std::floor(room.least / step + 1e-9);
  const double last = std::max(std::ceil(room.most / step - 1e-9), first + 1);
  Axis axis{label, first * step, last * step, {}};
  const int digits = DigitsFor(step, std::max(std::abs(axis.low), std::abs(axis.high)));
  for (double i = first; i <= last; ++i)
    axis.ticks.push_back({i * step, Significant(i == 0 ? 0 : i * step, digits)});
  return axis;
}

Axis PercentAxis(const std::string& label, const Extent& extent) {
  Extent percent;
  if (!extent.empty) {
    percent.Add(100 * std::clamp(extent.least, 0.0, 1.0));
    percent.Add(100 * std::clamp(extent.most, 0.0, 1.0));
  }
  Axis axis = extent.empty ? RoundAxis(label, {0, 100, false}) : RoundAxis(label, percent);
  std::erase_if(
      axis.ticks, [](const Tick& tick) { return tick.at < -1e-9 || tick.at > 100 + 1e-9; });
  axis.low = std::max(axis.low, 0.0) / 100;
  axis.high = std::min(axis.high, 100.0) / 100;
  for (Tick& tick : axis.ticks) tick.at /= 100;
  return axis;
}

Axis CountAxis(const std::string& label, int count) {
  Axis axis{label, 1, static_cast<double>(std::max(count, 1)), {}};
  const int step = std::max(1, static_cast<int>(RoundUp(static_cast<double>(count) / kMostTicks)));
  axis.ticks.push_back({1, "1"});
  for (int i = step > 1 ? step : 2; i <= count; i += step)
    axis.ticks.push_back({static_cast<double>(i), WithThousands(i)});
  if (count <= 1) axis.low = 0.5, axis.high = 1.5;
  return axis;
}

Axis DoublingAxis(const std::string& label, double most) {
  const int doublings = std::max(1, static_cast<int>(std::ceil(std::log2(most) - 1e-9)));
  const int step = doublings / kMostTicks + 1;
  Axis axis{label, 0, static_cast<double>(doublings), {}};
  for (int i = 0; i <= doublings; i += step)
    axis.ticks.push_back({static_cast<double>(i), WithThousands(std::ldexp(1, i))});
  return axis;
}

namespace {

// With more points than this, markers would hide the line.
constexpr size_t kMostMarkers = 30;

std::string ClassOf(LineStyle style) {
  switch (style) {
    case LineStyle::kFirst: return "first";
    case LineStyle::kSecond: return "second";
    case LineStyle::kIdeal: return "ideal";
  }
  return "";
}

// A disc for the first line, a square for the second line.
std::string Marker(LineStyle style, double x, double y, const std::string& content = "") {
  const std::string name = "mark " + ClassOf(style);
  if (style == LineStyle::kSecond) {
    return Element(
        "rect",
        {{"class", name},
         {"x", Length(x - 3)},
         {"y", Length(y - 3)},
         {"width", "6"},
         {"height", "6"}},
        content);
  }
  return Element(
      "circle", {{"class", name}, {"cx", Length(x)}, {"cy", Length(y)}, {"r", "3.2"}}, content);
}

std::string Tip(const std::string& text) { return Element("title", {}, Escape(text)); }

class Drawing {
 public:
  explicit Drawing(const LineChart& chart) : chart_(chart), frame_(FrameFor(chart.x, chart.y)) {}

  std::string Draw() const {
    std::string content = GridAndAxes(frame_, chart_.x, chart_.y);
    for (const ChartLine& line : chart_.lines) content += Path(line) + Points(line);
    return DrawingElement(frame_, chart_.description, content);
  }

 private:
  double X(const ChartPoint& p) const { return frame_.left + chart_.x.Share(p.x) * frame_.width; }
  double Y(const ChartPoint& p) const {
    return frame_.top + (1 - chart_.y.Share(p.y)) * frame_.height;
  }

  std::string Path(const ChartLine& line) const {
    std::string path;
    bool broken = true;
    for (const ChartPoint& point : line.points) {
      if (std::isfinite(point.y))
        path += (broken ? "M" : "L") + Length(X(point)) + "," + Length(Y(point));
      broken = !std::isfinite(point.y);
    }
    return path.empty() ? "" : Element("path", {{"class", ClassOf(line.style)}, {"d", path}});
  }

  std::string Points(const ChartLine& line) const {
    if (line.style == LineStyle::kIdeal) return "";
    const bool marked = line.points.size() <= kMostMarkers;
    std::string points;
    for (const ChartPoint& point : line.points) {
      if (!std::isfinite(point.y)) {
        points += Cross(line.style, point);
      } else if (marked) {
        points += Marker(line.style, X(point), Y(point), Tip(point.tip));
      } else {
        points += Element(
            "circle",
            {{"class", "touch"}, {"cx", Length(X(point))}, {"cy", Length(Y(point))}, {"r", "4"}},
            Tip(point.tip));
      }
    }
    return points;
  }

  // At the upper edge, because the value is outside the picture. The second line's crosses are
  // lower.
  std::string Cross(LineStyle style, const ChartPoint& point) const {
    const double x = X(point), y = frame_.top + (style == LineStyle::kSecond ? 16 : 6), r = 4;
    const std::string path = "M" + Length(x - r) + "," + Length(y - r) + "L" + Length(x + r) + "," +
                             Length(y + r) + "M" + Length(x - r) + "," + Length(y + r) + "L" +
                             Length(x + r) + "," + Length(y - r);
    return Element("path", {{"class", "cross " + ClassOf(style)}, {"d", path}}, Tip(point.tip));
  }

  const LineChart& chart_;
  Frame frame_;
};

}  // namespace

std::string ToSvg(const LineChart& chart) { return Drawing(chart).Draw(); }

std::string Swatch(LineStyle style) {
  const std::string line = Element("path", {{"class", ClassOf(style)}, {"d", "M0,6L26,6"}});
  const std::string marker = style == LineStyle::kIdeal ? "" : Marker(style, 13, 6);
  return Element(
      "svg",
      {{"class", "swatch"},
       {"viewBox", "0 0 26 12"},
       {"width", "26"},
       {"height", "12"},
       {"aria-hidden", "true"}},
      line + marker);
}

}  // namespace dtrun::models
