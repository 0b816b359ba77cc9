#ifndef DTRUN_MODELS_CALLBACKS_EARLY_STOPPING_H_
#define DTRUN_MODELS_CALLBACKS_EARLY_STOPPING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "models/callbacks/callback.h"
#include "models/callbacks/log_values.h"

namespace dtrun::models {

struct EarlyStoppingOptions {
  std::string monitor = "val_loss";
  MonitorMode mode = MonitorMode::kAuto;
  double min_delta = 0;           ///< a change of no more than this is no improvement
  uint64_t patience = 0;          ///< epochs without improvement after which it is enough; 0 and 1
                                  ///< both mean the first one
  uint64_t start_from_epoch = 0;  ///< epochs before it do not count
  bool restore_best_weights = false;  ///< at the end: parameters and buffers of the best epoch
  Print print = {};                   ///< says why training ended
};

/// Ends training when a number has stopped to get better.
class EarlyStopping : public Callback {
 public:
  /// Throws what Monitor throws.
  explicit EarlyStopping(EarlyStoppingOptions options = {});

  std::string name() const override { return "EarlyStopping"; }
  void OnTrainBegin(Run& run) override;
  void OnEpochEnd(Run& run, Logs& logs) override;
  void OnTrainEnd(Run& run, const Logs& logs) override;

  /// Of the epoch, from 0, with the best value so far.
  uint64_t best_epoch() const { return best_epoch_; }

 private:
  EarlyStoppingOptions options_;
  Monitor monitor_;
  double best_ = 0;
  uint64_t best_epoch_ = 0, waited_ = 0;
  std::vector<float> best_weights_;
};

}  // namespace dtrun::models

#endif
