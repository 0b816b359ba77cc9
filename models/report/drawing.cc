#include "models/report/drawing.h"

#include <algorithm>

#include "models/report/markup.h"

namespace dtrun::models {
namespace {

constexpr double kLetter = 6.6;  // a generous mean of digits, at the page's 12 units
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
  // The last label of x is centred below its tick.
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

}  // namespace dtrun::models
