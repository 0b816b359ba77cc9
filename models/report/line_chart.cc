#include "models/report/line_chart.h"

#include <algorithm>
#include <cmath>

#include "models/report/drawing.h"
#include "models/report/markup.h"

namespace dtrun::models {
namespace {

// With more points than these, markers would hide the line.
constexpr size_t kMostMarkers = 30;

std::string ClassOf(LineStyle style) {
  switch (style) {
    case LineStyle::kFirst: return "first";
    case LineStyle::kSecond: return "second";
    case LineStyle::kIdeal: return "ideal";
  }
  return "";
}

// A disc for the first line, a square for the second.
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

  // At the upper edge, where one looks for what has left the picture; the second line's are lower.
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
