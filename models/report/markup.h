#ifndef DTRUN_MODELS_REPORT_MARKUP_H_
#define DTRUN_MODELS_REPORT_MARKUP_H_

#include <string>
#include <utility>
#include <vector>

namespace dtrun::models {

/// Escapes text for HTML, SVG and their quoted attributes. Bytes that are not UTF-8, and control
/// characters, become U+FFFD.
std::string Escape(const std::string& text);

using Attributes = std::vector<std::pair<std::string, std::string>>;

/// <name attribute="value">content</name>. Escapes the values. `content` must be markup already.
std::string Element(
    const std::string& name, const Attributes& attributes, const std::string& content = "");

/// A length or position in a drawing, in its units.
std::string Length(double value);

/// Numbers for readers. Values that are not finite become "NaN", "infinity" or "-infinity".

/// 66175.6 -> "66,176"
std::string WithThousands(double value);

/// At least `digits` significant digits, without zeros at the end of a fraction. Integers keep all
/// their digits, with separators for thousands.
///   4 digits: 0.41234 -> "0.4123", 12.5 -> "12.5", 66175.6 -> "66,176", 1e-9 -> "1e-09"
std::string Significant(double value, int digits);

/// With exactly `decimals` decimals, zeros included.
///   (0.9, 4) -> "0.9000"
std::string Fixed(double value, int decimals);

/// A fraction in per cent.
///   (0.7534, 1) -> "75.3 %"
std::string Percent(double fraction, int decimals);

/// How a column of times is written: all with one unit and as many decimals.
struct TimeScale {
  const char* unit;  ///< "s" or "ms"
  double units_per_s;
  int decimals;

  std::string Text(double seconds) const;
};

/// The scale in which the longest of the times has four digits.
///   75.318 s -> "75.32" s   0.11064 s -> "110.6" ms
TimeScale TimeScaleFor(double longest_s);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_REPORT_MARKUP_H_
