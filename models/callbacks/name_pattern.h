#ifndef DTRUN_MODELS_CALLBACKS_NAME_PATTERN_H_
#define DTRUN_MODELS_CALLBACKS_NAME_PATTERN_H_

#include <string>

#include "models/callbacks/run.h"

namespace dtrun::models {

/// `pattern` with each {name} replaced by that number, as Python's format does it with the types d,
/// f, e and g: {epoch}, {epoch:02d}, {val_loss:.2f}. Throws Error kInvalidArgument, naming the
/// field, when there is no such number or the format is none of these.
///   FillIn("ckpt_{epoch:02d}-{val_loss:.2f}", {{"epoch", 3}, {"val_loss", 0.4567}})
///     ->  "ckpt_03-0.46"
std::string FillIn(const std::string& pattern, const Logs& numbers);

}  // namespace dtrun::models

#endif
