#ifndef DTRUN_MODELS_CALLBACKS_MONITOR_H_
#define DTRUN_MODELS_CALLBACKS_MONITOR_H_

#include <string>

#include "models/callbacks/run.h"

namespace dtrun::models {

/// Whether larger or smaller values of a number are better. kAuto: larger ones, if "acc" or "auc"
/// is in its name.
enum class MonitorMode { kAuto, kMin, kMax };

/// A number of the logs whose best value is looked for.
class Monitor {
 public:
  /// A value is better than the best if it is so by more than `min_delta`. Throws Error
  /// kInvalidArgument when that is below 0 or the name is empty.
  Monitor(std::string name, MonitorMode mode, double min_delta = 0);

  const std::string& name() const { return name_; }
  bool larger_is_better() const { return larger_is_better_; }
  /// Throws Error kInvalidArgument, naming what there is, when the logs do not have it.
  double ValueIn(const Logs& logs) const;
  /// Whether `value` beats `best`. A NaN never does.
  bool IsBetter(double value, double best) const;
  /// What every number is better than.
  double worst() const;

 private:
  std::string name_;
  bool larger_is_better_;
  double min_delta_;
};

}  // namespace dtrun::models

#endif
