#ifndef DTRUN_MODELS_REPORT_SCALING_H_
#define DTRUN_MODELS_REPORT_SCALING_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dtrun::models {

/// The measured numbers of one epoch of a run. If the epoch leaves out a smaller last batch,
/// `examples` is smaller than the data set.
struct TimedEpoch {
  uint64_t examples = 0;  ///< of all ranks together
  double seconds = 0;     ///< of the training part
};

/// A training with one number of ranks.
struct ScalingRun {
  int ranks = 1;
  std::vector<TimedEpoch> epochs;
};

struct ScalingRow {
  int ranks = 1;
  double examples_per_s = 0;  ///< of all ranks together
  double speed_up = 1;        ///< efficiency times ranks
  double efficiency = 1;      ///< rate per rank / rate per rank of the smallest run
};

/// The median of the epochs' examples per second, without the first epoch, which warms up. For an
/// even number of epochs, the mean of the two middle values. Throws Error kInvalidArgument for
/// fewer than two epochs, or an epoch without examples or time.
///   {10 in 5 s, 10 in 1 s, 10 in 2 s, 10 in 1 s}  ->  10
double MedianRate(const std::vector<TimedEpoch>& epochs);

/// One row for each run, sorted by ranks. Throws Error kInvalidArgument for an error of MedianRate
/// (the text names the ranks), two runs with equal ranks, or ranks below 1.
///   1 rank: 100/s, 2 ranks: 180/s  ->  {1, 100, 1, 1}, {2, 180, 1.8, 0.9}
std::vector<ScalingRow> ScalingTable(const std::vector<ScalingRun>& runs);

/// Reads the speed from a trainer's --json file: `ranks`, and for each of `epochs` its `seconds`
/// and either `examples` or, as in cnn_fmnist's files, `images_per_s`. Throws Error
/// kInvalidArgument, one line with the name `source`, if a number is missing or invalid.
ScalingRun ParseScalingRun(const std::string& json, const std::string& source);

/// The rows for a terminal, with a bar each. A bar that reaches its `|` is ideal.
///   ranks   images/s   speed-up   efficiency
///       1      3,281       1.00      100.0 %   ####################|
///       2      6,299       1.92       96.0 %   ######################################  |
/// `example` is the name of an example, in the singular.
std::string ScalingText(const std::vector<ScalingRow>& rows, const std::string& example);

/// {"scaling": [{"ranks": 1, "examples_per_s": 3281.2, "speed_up": 1, "efficiency": 1}, ...]},
/// after the `facts`. Each fact is a member with a string.
std::string ScalingJson(
    const std::vector<ScalingRow>& rows,
    const std::vector<std::pair<std::string, std::string>>& facts);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_REPORT_SCALING_H_
