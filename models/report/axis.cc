#include "models/report/axis.h"

#include <algorithm>
#include <cmath>

#include "models/report/number_text.h"

namespace dtrun::models {
namespace {

constexpr int kMostTicks = 7;
constexpr double kMostShown = 1e300;  // a picture's arithmetic stays finite

// The smallest of 1, 2, 5, 10, 20, ... (and 0.5, 0.2, ...) that is not below `step`.
double RoundUp(double step) {
  const double power = std::pow(10, std::floor(std::log10(step)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= step * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

// An extent with a positive length that a double can step through.
Extent WithRoom(const Extent& extent) {
  if (extent.empty) return {0, 1, false};
  const double length = extent.most - extent.least;
  const double size = std::max(std::abs(extent.least), std::abs(extent.most));
  if (length > 1e-9 * size) return extent;
  const double room = size > 0 ? size / 10 : 1;
  return {extent.least - room, extent.most + room, false};
}

// Ticks need as many digits as tell them apart.
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

}  // namespace dtrun::models
