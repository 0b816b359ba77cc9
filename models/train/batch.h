#ifndef DTRUN_MODELS_TRAIN_BATCH_H_
#define DTRUN_MODELS_TRAIN_BATCH_H_

#include <dtrun/dataset.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "models/data/distribute.h"
#include "models/losses/loss.h"

namespace dtrun::models {

/// This replica's share of one global batch: what a step of a loop works on. Views of what its
/// BatchSource owns.
struct ReplicaBatch {
  size_t examples = 0;  ///< of this replica; none is possible
  /// Of its first example in the global batch: selects the dropout masks, so that these do not
  /// depend on the number of replicas.
  uint32_t first_position = 0;
  uint64_t global_batch = 0;  ///< examples of all replicas together
  Targets targets = {};       ///< of `examples` examples
  /// What each example counts for in the loss and the metrics; empty: 1.
  std::span<const float> sample_weights = {};
  /// Writes the inputs of the examples [first, first + count) as floats, (count, height, width,
  /// channels), straight to where the network reads them.
  std::function<void(size_t first, size_t count, float* inputs)> write_inputs = {};
};

/// Where a loop's batches come from, epoch by epoch. All replicas draw their shares of the same
/// global batches. Not thread-safe.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  /// Global batches of an epoch; 0: it does not end by itself.
  virtual uint64_t steps_per_epoch() const = 0;
  /// The next batch is number `first_step` of epoch `epoch`, both from 0: a run that was broken off
  /// goes on from there with the same examples.
  virtual void StartEpoch(uint64_t epoch, uint64_t first_step = 0) = 0;
  /// Fills `batch`, which is valid until the next call; false at the end of the epoch.
  virtual bool Next(ReplicaBatch& batch) = 0;
};

/// The rest of an epoch, for `for (const ReplicaBatch& batch : RestOf(source))`.
class RestOf {
 public:
  class Iterator {
   public:
    explicit Iterator(BatchSource* source) : source_(source) { ++*this; }
    const ReplicaBatch& operator*() const { return batch_; }
    Iterator& operator++() {
      if (!source_->Next(batch_)) source_ = nullptr;
      return *this;
    }
    bool operator!=(std::nullptr_t) const { return source_ != nullptr; }

   private:
    BatchSource* source_;
    ReplicaBatch batch_;
  };

  explicit RestOf(BatchSource& source) : source_(source) {}
  Iterator begin() const { return Iterator(&source_); }
  std::nullptr_t end() const { return nullptr; }

 private:
  BatchSource& source_;
};

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

/// A distributed pipeline as a loop's batches. Inputs go from the data set's memory straight to
/// where the network reads them.
class PipelineBatches : public StrategyBatches {
 public:
  explicit PipelineBatches(const DistributedPipeline& pipeline)
      : StrategyBatches(std::make_unique<DistributedPipelineDataset>(pipeline)) {}
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_TRAIN_BATCH_H_
