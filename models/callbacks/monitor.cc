#include "models/callbacks/monitor.h"

#include <dtrun/error.h>

#include <limits>
#include <utility>

#include "models/text.h"

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

}  // namespace dtrun::models
