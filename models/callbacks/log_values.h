#ifndef DTRUN_MODELS_CALLBACKS_LOG_VALUES_H_
#define DTRUN_MODELS_CALLBACKS_LOG_VALUES_H_

#include <functional>
#include <string>

#include "models/callbacks/callback.h"

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

/// `pattern` with each {name} replaced by that number, as Python's format does it with the types d,
/// f, e and g: {epoch}, {epoch:02d}, {val_loss:.2f}. Throws Error kInvalidArgument, naming the
/// field, when there is no such number or the format is none of these.
///   FillIn("ckpt_{epoch:02d}-{val_loss:.2f}", {{"epoch", 3}, {"val_loss", 0.4567}})
///     ->  "ckpt_03-0.46"
std::string FillIn(const std::string& pattern, const Logs& numbers);

/// Where a callback's lines go; called on rank 0 alone.
using Print = std::function<void(const std::string& line)>;

/// Writes the line to stdout at once.
void PrintLine(const std::string& line);

/// As printf does.
__attribute__((format(printf, 1, 2))) std::string Format(const char* format, ...);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_CALLBACKS_LOG_VALUES_H_
