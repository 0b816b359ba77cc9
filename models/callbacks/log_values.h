#ifndef DTRUN_MODELS_CALLBACKS_LOG_VALUES_H_
#define DTRUN_MODELS_CALLBACKS_LOG_VALUES_H_

#include <functional>
#include <string>

#include "models/callbacks/callback.h"

namespace dtrun::models {

/// The better direction of a number. kAuto: larger is better if the name contains "acc" or "auc",
/// else smaller.
enum class MonitorMode { kAuto, kMin, kMax };

/// A number of the logs, and the rule for its best value.
class Monitor {
 public:
  /// A value is better than the best one if it is better by more than `min_delta`. Throws Error
  /// kInvalidArgument if `min_delta` is below 0 or the name is empty.
  Monitor(std::string name, MonitorMode mode, double min_delta = 0);

  const std::string& name() const { return name_; }
  bool larger_is_better() const { return larger_is_better_; }
  /// Throws Error kInvalidArgument if the logs do not have the number. The error lists their names.
  double ValueIn(const Logs& logs) const;
  /// True if `value` is better than `best`. Never true for a NaN.
  bool IsBetter(double value, double best) const;
  /// The value that is worse than every number.
  double worst() const;

 private:
  std::string name_;
  bool larger_is_better_;
  double min_delta_;
};

/// Returns `pattern` with each {name} replaced by that number. Formats are as in Python, with the
/// types d, f, e and g: {epoch}, {epoch:02d}, {val_loss:.2f}. Throws Error kInvalidArgument, with
/// the name of the field, for an unknown number or format.
///   FillIn("ckpt_{epoch:02d}-{val_loss:.2f}", {{"epoch", 3}, {"val_loss", 0.4567}})
///     ->  "ckpt_03-0.46"
std::string FillIn(const std::string& pattern, const Logs& numbers);

/// A function that prints a callback's lines. Called on rank 0 only.
using Print = std::function<void(const std::string& line)>;

/// Writes the line to stdout and flushes stdout.
void PrintLine(const std::string& line);

/// Formats as printf does.
__attribute__((format(printf, 1, 2))) std::string Format(const char* format, ...);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_CALLBACKS_LOG_VALUES_H_
