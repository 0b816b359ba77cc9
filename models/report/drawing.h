#ifndef DTRUN_MODELS_REPORT_DRAWING_H_
#define DTRUN_MODELS_REPORT_DRAWING_H_

#include <string>

#include "models/report/axis.h"

namespace dtrun::models {

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

}  // namespace dtrun::models

#endif
