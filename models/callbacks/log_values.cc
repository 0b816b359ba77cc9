#include "models/callbacks/log_values.h"

#include <dtrun/error.h>

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <limits>
#include <regex>
#include <utility>

#include "models/message_text.h"

namespace dtrun::models {
namespace {

bool Grows(const std::string& name, MonitorMode mode) {
  switch (mode) {
    case MonitorMode::kMin: return false;
    case MonitorMode::kMax: return true;
    case MonitorMode::kAuto: break;
  }
  return name.find("acc") != std::string::npos || name.find("auc") != std::string::npos;
}

}  // namespace

Monitor::Monitor(std::string name, MonitorMode mode, double min_delta)
    : name_(std::move(name)), larger_is_better_(Grows(name_, mode)), min_delta_(min_delta) {
  if (name_.empty())
    throw Error(
        ErrorCode::kInvalidArgument, "monitor: '', expected the name of a number in the logs");
  if (!(min_delta >= 0))
    throw Error(
        ErrorCode::kInvalidArgument, Text("min_delta: ", min_delta, ", expected 0 or more"));
}

double Monitor::ValueIn(const Logs& logs) const {
  const auto found = logs.find(name_);
  if (found != logs.end()) return found->second;
  std::string names;
  for (const auto& [name, value] : logs) names += Text(names.empty() ? "" : ", ", name);
  throw Error(
      ErrorCode::kInvalidArgument,
      Text("monitor: '", name_, "' is not in the logs, expected one of ", names));
}

bool Monitor::IsBetter(double value, double best) const {
  return larger_is_better_ ? value > best + min_delta_ : value < best - min_delta_;
}

double Monitor::worst() const {
  const double infinity = std::numeric_limits<double>::infinity();
  return larger_is_better_ ? -infinity : infinity;
}

namespace {

[[noreturn]] void Refuse(const std::string& pattern, const std::string& problem) {
  throw Error(ErrorCode::kInvalidArgument, Text("the name '", pattern, "': ", problem));
}

double ValueOf(const std::string& pattern, const std::string& name, const Logs& numbers) {
  const auto found = numbers.find(name);
  if (found != numbers.end()) return found->second;
  std::string names;
  for (const auto& [known, value] : numbers) names += Text(names.empty() ? "" : ", ", known);
  Refuse(pattern, Text("{", name, "} is not known, expected one of ", names));
}

// Without a format, a whole number has no decimal point.
std::string Written(const std::string& pattern, const std::string& format, double value) {
  static const std::regex known("(0?[0-9]{0,2})(\\.[0-9]{1,2})?([dfeg])");
  std::smatch parts;
  if (format.empty()) return Format("%.*g", value == std::round(value) ? 15 : 6, value);
  if (!std::regex_match(format, parts, known))
    Refuse(pattern, Text("the format ':", format, "', expected one like :02d or :.2f"));
  const bool zeros = parts.str(1).rfind('0', 0) == 0;
  const int width = parts.str(1).empty() ? 0 : std::stoi(parts.str(1));
  const bool whole = parts.str(3) == "d";
  if (whole && (parts.length(2) > 0 || value != std::round(value)))
    Refuse(pattern, Text("the format ':", format, "' of ", value, ", expected a whole number"));
  const int precision = whole ? 0 : parts.length(2) > 0 ? std::stoi(parts.str(2).substr(1)) : 6;
  std::string text;
  switch (parts.str(3)[0]) {
    case 'e': text = Format("%.*e", precision, value); break;
    case 'g': text = Format("%.*g", precision, value); break;
    default: text = Format("%.*f", precision, value); break;
  }
  const size_t sign = text[0] == '-' ? 1 : 0;
  const size_t fill = text.size() < size_t(width) ? size_t(width) - text.size() : 0;
  return zeros ? text.insert(sign, fill, '0') : std::string(fill, ' ') + text;
}

}  // namespace

std::string FillIn(const std::string& pattern, const Logs& numbers) {
  std::string text;
  for (size_t at = 0; at < pattern.size();) {
    const size_t open = pattern.find('{', at);
    text += pattern.substr(at, open - at);
    if (open == std::string::npos) break;
    const size_t close = pattern.find('}', open);
    if (close == std::string::npos) Refuse(pattern, "a '{' without '}'");
    const std::string field = pattern.substr(open + 1, close - open - 1);
    const size_t colon = field.find(':');
    const std::string format = colon == std::string::npos ? "" : field.substr(colon + 1);
    text += Written(pattern, format, ValueOf(pattern, field.substr(0, colon), numbers));
    at = close + 1;
  }
  return text;
}

void PrintLine(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

std::string Format(const char* format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  std::string text(static_cast<size_t>(std::vsnprintf(nullptr, 0, format, arguments)), '\0');
  va_end(arguments);
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return text;
}

}  // namespace dtrun::models
