#ifndef DTRUN_MODELS_CALLBACKS_THROUGHPUT_H_
#define DTRUN_MODELS_CALLBACKS_THROUGHPUT_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "models/callbacks/callback.h"

namespace dtrun::models {

/// How fast it goes. Adds to an epoch's logs: "seconds", from the first to the last batch, without
/// validation, rank 0's; "images_per_s", of all ranks together in that time; "exposed_share", the
/// part of it in which ranks exchanged gradients, or waited for others to, and did not compute (a
/// fraction, the ranks' mean). All ranks begin an epoch together.
class Throughput : public Callback {
 public:
  std::string name() const override { return "Throughput"; }
  void OnEpochBegin(Run& run) override;
  void OnBatchEnd(Run& run, const Logs& logs) override;
  void OnEpochEnd(Run& run, Logs& logs) override;

 private:
  std::chrono::steady_clock::time_point start_;
  uint64_t examples_ = 0;  // of all ranks
  double seconds_ = 0, exposed_before_ = 0, exposed_ = 0;
};

/// Keeps the loss of every global batch, the same on all ranks.
class StepLosses : public Callback {
 public:
  /// `losses` are appended to at the end of each epoch, and outlive it.
  explicit StepLosses(std::vector<double>& losses) : losses_(losses) {}
  std::string name() const override { return "StepLosses"; }
  void OnEpochBegin(Run& run) override;
  void OnBatchEnd(Run& run, const Logs& logs) override;
  void OnEpochEnd(Run& run, Logs& logs) override;

 private:
  std::vector<double>& losses_;
  std::vector<double> of_epoch_;  // this rank's parts
};

}  // namespace dtrun::models

#endif
