#include "models/report/number_text.h"

#include <array>
#include <cmath>
#include <cstdio>

namespace dtrun::models {
namespace {

std::string NameOfNotFinite(double value) {
  if (std::isnan(value)) return "NaN";
  return value > 0 ? "infinity" : "-infinity";
}

std::string Format(const char* format, int precision, double value) {
  std::array<char, 400> text{};  // the largest double has 309 digits
  std::snprintf(text.data(), text.size(), format, precision, value);
  return text.data();
}

}  // namespace

std::string Fixed(double value, int decimals) {
  if (!std::isfinite(value)) return NameOfNotFinite(value);
  return Format("%.*f", decimals, value);
}

std::string WithThousands(double value) {
  if (!std::isfinite(value)) return NameOfNotFinite(value);
  if (std::abs(value) >= 1e15) return Format("%.*g", 4, value);
  const std::string digits = Format("%.*f", 0, std::abs(value));
  std::string text = value < 0 && digits != "0" ? "-" : "";
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string Significant(double value, int digits) {
  if (!std::isfinite(value)) return NameOfNotFinite(value);
  if (std::abs(value) >= std::pow(10, digits - 1)) return WithThousands(value);
  return Format("%.*g", digits, value);
}

std::string Percent(double fraction, int decimals) {
  if (!std::isfinite(fraction)) return NameOfNotFinite(fraction);
  return Fixed(100 * fraction, decimals) + " %";
}

}  // namespace dtrun::models
