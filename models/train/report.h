#ifndef DTRUN_MODELS_TRAIN_REPORT_H_
#define DTRUN_MODELS_TRAIN_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace dtrun::models {

/// One epoch, over all ranks. Accuracies are fractions.
struct EpochResult {
  double loss = 0, train_accuracy = 0;
  double test_loss = 0, test_accuracy = 0;
  double seconds = 0;       ///< of the training part
  double images_per_s = 0;  ///< that all ranks together trained on in that time
  /// Of that time, the part in which ranks exchanged gradients, or waited for others to, and did
  /// not compute: a fraction, the ranks' mean.
  double exposed_share = 0;
};

struct TrainingResult {
  int ranks = 1;
  std::vector<EpochResult> epochs;
  double test_loss = 0, test_accuracy = 0;
  std::string parameter_digest;
  std::vector<double> step_losses;  ///< of the global batches, when asked for
};

/// The JSON object that docs call cnn_fmnist's result. Numbers have all their digits; what is not
/// finite is null.
std::string ToJson(const TrainingResult& result);

/// Why a file could not be written to `path`; empty when it could. Leaves nothing behind.
std::string WhyNotWritable(const std::string& path);

/// Replaces the file by one that holds `text`, whole or not at all. Throws Error kSystem with the
/// path and the reason.
void WriteAtomically(const std::string& path, const std::string& text);

}  // namespace dtrun::models

#endif
