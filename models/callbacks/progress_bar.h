#ifndef DTRUN_MODELS_CALLBACKS_PROGRESS_BAR_H_
#define DTRUN_MODELS_CALLBACKS_PROGRESS_BAR_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "models/callbacks/callback.h"
#include "models/callbacks/log_values.h"

namespace dtrun::models {

/// The line of an epoch: "Epoch 2/8: loss 0.5123, accuracy 0.8123, val_loss 0.4100, val_accuracy
/// 0.8521, 9.1 s, 6600 images/s, communication exposed 2.1 %". The last three numbers are present
/// if Throughput has added them to the logs. Exposed communication is present only with several
/// ranks.
std::string EpochLine(uint64_t epoch, uint64_t epochs, const Logs& logs, int ranks);

/// The progress of an epoch on this rank.
struct EpochProgress {
  uint64_t epoch = 1, epochs = 1;  ///< both count from 1
  uint64_t batch = 0, steps = 0;   ///< batches done, and batches of the epoch; 0: not known
  uint64_t resumed_at = 0;         ///< batches that an earlier run did
  uint64_t examples = 0;           ///< of all ranks, in this run
  double seconds = 0;
};

/// One line of at most `columns` - 1 characters: "Epoch 2/8 5/10 [====>....] 2 s left, loss 0.2500,
/// accuracy 0.8000, 50 images/s".
std::string ProgressLine(const EpochProgress& progress, const Logs& logs, int columns);

struct ProgressBarOptions {
  /// The width of the terminal; see Context::terminal_columns. During an epoch, a line there is
  /// redrawn at most ten times a second. 0: no terminal; only the line at an epoch's end is
  /// printed.
  int columns = 0;
  Print print = PrintLine;  ///< prints the line at an epoch's end
};

/// Shows the progress of training on rank 0.
class ProgressBar : public Callback {
 public:
  explicit ProgressBar(ProgressBarOptions options = {});
  std::string name() const override { return "ProgressBar"; }
  void OnEpochBegin(Run& run) override;
  void OnBatchEnd(Run& run, const Logs& logs) override;
  void OnTestBegin(Run& run) override;
  void OnEpochEnd(Run& run, Logs& logs) override;

 private:
  void Remove();

  ProgressBarOptions options_;
  EpochProgress progress_;
  std::chrono::steady_clock::time_point start_;
  double next_ = 0;  // time of the next drawing, in seconds since the start of the epoch
  bool drawn_ = false;
};

}  // namespace dtrun::models

#endif
