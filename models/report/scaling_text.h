#ifndef DTRUN_MODELS_REPORT_SCALING_TEXT_H_
#define DTRUN_MODELS_REPORT_SCALING_TEXT_H_

#include <string>
#include <utility>
#include <vector>

#include "models/report/scaling.h"

namespace dtrun::models {

/// What a trainer's --json file tells of its speed: `ranks`, and for each of `epochs` its `seconds`
/// and either `examples` or, as cnn_fmnist writes it, `images_per_s`. Throws Error
/// kInvalidArgument, one line that names `source`, when it does not.
ScalingRun ParseScalingRun(const std::string& json, const std::string& source);

/// The rows for a terminal, with a bar each; a bar that reaches its `|` is ideal.
///   ranks   images/s   speed-up   efficiency
///       1      3,281       1.00      100.0 %   ####################|
///       2      6,299       1.92       96.0 %   ######################################  |
/// `example`: what an example is called, in the singular.
std::string ScalingText(const std::vector<ScalingRow>& rows, const std::string& example);

/// {"scaling": [{"ranks": 1, "examples_per_s": 3281.2, "speed_up": 1, "efficiency": 1}, ...]},
/// after the `facts`, each a member with a string.
std::string ScalingJson(
    const std::vector<ScalingRow>& rows,
    const std::vector<std::pair<std::string, std::string>>& facts);

}  // namespace dtrun::models

#endif
