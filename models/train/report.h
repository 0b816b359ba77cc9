#ifndef DTRUN_MODELS_TRAIN_REPORT_H_
#define DTRUN_MODELS_TRAIN_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace dtrun::models {

/// The results of one epoch, over all ranks. Accuracies are fractions.
struct EpochResult {
  double loss = 0, train_accuracy = 0;
  double test_loss = 0, test_accuracy = 0;
  double seconds = 0;       ///< of the training part
  double images_per_s = 0;  ///< of all ranks together in that time
  /// The fraction of that time in which a rank exchanges gradients or waits for other ranks, and
  /// does not compute. The mean over the ranks.
  double exposed_share = 0;
};

struct TrainingResult {
  int ranks = 1;
  std::vector<EpochResult> epochs;
  double test_loss = 0, test_accuracy = 0;
  std::string parameter_digest;
  std::vector<double> step_losses;  ///< of the global batches, if requested
};

/// The JSON object that the documentation calls the result of cnn_fmnist. Numbers have all their
/// digits. Infinities and NaNs become null.
std::string ToJson(const TrainingResult& result);

/// Returns the reason why a file cannot be written to `path`, or "". Leaves no file behind.
std::string WhyNotWritable(const std::string& path);

/// Replaces the file atomically by a file with `text`. Writes directly to a device or a pipe.
/// Throws Error kSystem with the path and the reason.
void WriteAtomically(const std::string& path, const std::string& text);

}  // namespace dtrun::models

#endif
