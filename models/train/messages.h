#ifndef DTRUN_MODELS_TRAIN_MESSAGES_H_
#define DTRUN_MODELS_TRAIN_MESSAGES_H_

#include <cstdint>
#include <string>

#include "models/train/report.h"
#include "models/train/trainer.h"

namespace dtrun::models {

/// What a trainer tells its user, as text: who prints it, and where, is decided elsewhere.

/// "Epoch 2/8: loss 0.5123, accuracy 0.8123, test loss 0.4100, test accuracy 0.8521, 9.1 s, 6600
/// images/s, communication exposed 2.1 %", the latter of more than one rank
std::string EpochLine(uint64_t epoch, uint64_t epochs, const EpochResult& result, int ranks);

/// "Test: loss 0.2312, accuracy 0.9163 on 10000 images; parameters 9f86d081884c7d65 on all 2 ranks"
std::string ResultLine(const TrainingResult& result, uint64_t test_images);

/// One line of at most `columns` - 1 characters about an epoch that runs. Loss and accuracy are
/// those of this rank's share; images/s count all `ranks`.
std::string ProgressLine(
    uint64_t epoch, uint64_t epochs, const StepReport& report, int ranks, int columns);

/// Redraws a line at most ten times a second, and removes it.
class ProgressPrinter {
 public:
  ProgressPrinter(uint64_t epochs, int ranks, int columns)
      : epochs_(epochs), ranks_(ranks), columns_(columns) {}

  void Draw(uint64_t epoch, const StepReport& report);
  void Remove();

 private:
  uint64_t epochs_;
  int ranks_, columns_;
  double next_ = 0;  // seconds into the epoch
};

}  // namespace dtrun::models

#endif
