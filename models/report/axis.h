#ifndef DTRUN_MODELS_REPORT_AXIS_H_
#define DTRUN_MODELS_REPORT_AXIS_H_

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

}  // namespace dtrun::models

#endif
