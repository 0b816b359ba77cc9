#include "models/report/markup.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace dtrun::models {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

// The length of the UTF-8 character that begins at `i`. 0 if it is invalid (Unicode 15, table 3-7).
size_t CharacterAt(const std::string& text, size_t i) {
  const auto byte = [&](size_t at) {
    return at < text.size() ? static_cast<uint8_t>(text[at]) : uint8_t{0};
  };
  const auto follows = [&](size_t at) { return (byte(at) & 0xC0) == 0x80; };
  const uint8_t first = byte(i), second = byte(i + 1);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(i + 1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    if (first == 0xE0 && second < 0xA0) return 0;
    if (first == 0xED && second > 0x9F) return 0;
    return follows(i + 1) && follows(i + 2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    if (first == 0xF0 && second < 0x90) return 0;
    if (first == 0xF4 && second > 0x8F) return 0;
    return follows(i + 1) && follows(i + 2) && follows(i + 3) ? 4 : 0;
  }
  return 0;
}

bool IsControl(char c) {
  const auto byte = static_cast<uint8_t>(c);
  return (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F;
}

}  // namespace

std::string Escape(const std::string& text) {
  std::string escaped;
  for (size_t i = 0; i < text.size();) {
    const size_t bytes = CharacterAt(text, i);
    if (bytes == 0 || IsControl(text[i])) {
      escaped += kReplacement;
    } else if (text[i] == '&') {
      escaped += "&amp;";
    } else if (text[i] == '<') {
      escaped += "&lt;";
    } else if (text[i] == '>') {
      escaped += "&gt;";
    } else if (text[i] == '"') {
      escaped += "&quot;";
    } else {
      escaped += text.substr(i, bytes);
    }
    i += bytes == 0 ? 1 : bytes;
  }
  return escaped;
}

std::string Element(
    const std::string& name, const Attributes& attributes, const std::string& content) {
  std::string element = "<" + name;
  for (const auto& [key, value] : attributes) element += " " + key + "=\"" + Escape(value) + "\"";
  return element + ">" + content + "</" + name + ">";
}

std::string Length(double value) {
  const double rounded = std::round(10 * value) / 10;
  return Fixed(rounded == 0 ? 0 : rounded, 1);
}

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

TimeScale TimeScaleFor(double longest_s) {
  const bool is_short = longest_s > 0 && longest_s < 1;
  TimeScale scale = {is_short ? "ms" : "s", is_short ? 1000.0 : 1.0, 3};
  for (double limit = 10; scale.decimals > 0 && longest_s * scale.units_per_s >= limit; limit *= 10)
    --scale.decimals;
  return scale;
}

std::string TimeScale::Text(double seconds) const {
  return decimals == 0 ? WithThousands(seconds * units_per_s)
                       : Fixed(seconds * units_per_s, decimals);
}

}  // namespace dtrun::models
