#ifndef DTRUN_MODELS_REPORT_SCALING_H_
#define DTRUN_MODELS_REPORT_SCALING_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dtrun::models {

/// One epoch of a run, as it was and not as it was meant to be: an epoch that leaves out a ragged
/// last batch has processed fewer examples than the data set has.
struct TimedEpoch {
  uint64_t examples = 0;  ///< that all ranks together trained on
  double seconds = 0;     ///< of the training part
};

/// The same training with one number of ranks.
struct ScalingRun {
  int ranks = 1;
  std::vector<TimedEpoch> epochs;
};

struct ScalingRow {
  int ranks = 1;
  double examples_per_s = 0;  ///< all ranks together
  double speed_up = 1;        ///< efficiency times ranks
  double efficiency = 1;      ///< examples/s of a rank, over those of a rank of the smallest run
};

/// Examples per second: of the epochs without the first, which warms up, the median. With an even
/// number of them, the mean of the two in the middle. Throws Error kInvalidArgument when there are
/// fewer than two epochs, or one has no examples or no time.
///   {10 in 5 s, 10 in 1 s, 10 in 2 s, 10 in 1 s}  ->  10
double MedianRate(const std::vector<TimedEpoch>& epochs);

/// A row for each run, by ranks. Throws Error kInvalidArgument for what MedianRate refuses (the
/// text names the ranks), two runs with equal ranks, or ranks below 1.
///   1 rank: 100/s, 2 ranks: 180/s  ->  {1, 100, 1, 1}, {2, 180, 1.8, 0.9}
std::vector<ScalingRow> ScalingTable(const std::vector<ScalingRun>& runs);

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

#endif  // DTRUN_MODELS_REPORT_SCALING_H_
