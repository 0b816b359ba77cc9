#ifndef DTRUN_MODELS_TRAIN_STRATEGY_BATCHES_H_
#define DTRUN_MODELS_TRAIN_STRATEGY_BATCHES_H_

#include <dtrun/dataset.h>

#include <cstdint>
#include <memory>

#include "models/train/batch.h"

namespace dtrun::models {

/// What a strategy has distributed, as a loop's batches: its targets are labels (i32) or values
/// (f32), which Next() checks.
class StrategyBatches : public BatchSource {
 public:
  explicit StrategyBatches(std::unique_ptr<DistributedDataset> data) : data_(std::move(data)) {}

  uint64_t steps_per_epoch() const override { return data_->batches_per_epoch(); }
  void StartEpoch(uint64_t epoch, uint64_t first_step = 0) override {
    data_->StartEpoch(epoch, first_step);
  }
  bool Next(ReplicaBatch& batch) override;

  /// Examples of this replica in a batch, at most: what a network has to have room for.
  uint64_t largest_batch() const { return data_->largest_batch(); }
  /// For how long this rank has waited for batches, in seconds.
  double wait_seconds() const { return wait_seconds_; }

 private:
  std::unique_ptr<DistributedDataset> data_;
  DistributedBatch batch_;
  double wait_seconds_ = 0;
};

}  // namespace dtrun::models

#endif
