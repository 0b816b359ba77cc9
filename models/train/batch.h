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

/// This replica's share of one global batch, for one step of a loop. The views point to memory of
/// the BatchSource.
struct ReplicaBatch {
  size_t examples = 0;  ///< of this replica; may be 0
  /// The position of this replica's first example in the global batch. It selects the dropout
  /// masks, so that these do not depend on the number of replicas.
  uint32_t first_position = 0;
  uint64_t global_batch = 0;  ///< examples of all replicas together
  Targets targets = {};       ///< of the `examples` examples
  /// The weight of each example in the loss and the metrics. Empty: all weights are 1.
  std::span<const float> sample_weights = {};
  /// The number of each example in the data set. Empty: not known.
  std::span<const uint64_t> example_numbers = {};
  /// Writes the inputs of the examples [first, first + count) as floats, (count, height, width,
  /// channels), straight to the network's input memory.
  std::function<void(size_t first, size_t count, float* inputs)> write_inputs = {};
};

/// The source of a loop's batches, epoch by epoch. All replicas get their shares of the same global
/// batches. Not thread-safe.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  /// Global batches in an epoch. 0: the epoch has no end.
  virtual uint64_t steps_per_epoch() const = 0;
  /// Sets the next batch: number `first_step` of epoch `epoch`, both from 0. So an interrupted run
  /// can continue with the same examples.
  virtual void StartEpoch(uint64_t epoch, uint64_t first_step = 0) = 0;
  /// Fills `batch`, which is valid until the next call. Returns false at the end of the epoch.
  virtual bool Next(ReplicaBatch& batch) = 0;
};

/// A range over the rest of an epoch: `for (const ReplicaBatch& batch : RestOf(source))`.
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

/// The batches of a data set that a strategy has distributed. Targets must be labels (i32) or
/// values (f32). Else Next() throws Error kInvalidArgument.
class StrategyBatches : public BatchSource {
 public:
  explicit StrategyBatches(std::unique_ptr<DistributedDataset> data) : data_(std::move(data)) {}

  uint64_t steps_per_epoch() const override { return data_->batches_per_epoch(); }
  void StartEpoch(uint64_t epoch, uint64_t first_step = 0) override {
    data_->StartEpoch(epoch, first_step);
  }
  bool Next(ReplicaBatch& batch) override;

  /// The largest number of examples of this replica in a batch. A network needs room for as many.
  uint64_t largest_batch() const { return data_->largest_batch(); }
  /// The seconds that this rank has waited for batches.
  double wait_seconds() const { return wait_seconds_; }

 private:
  std::unique_ptr<DistributedDataset> data_;
  DistributedBatch batch_;
  double wait_seconds_ = 0;
};

/// The batches of a distributed pipeline. Inputs go from the data set's memory straight to the
/// network's input memory.
class PipelineBatches : public StrategyBatches {
 public:
  explicit PipelineBatches(const DistributedPipeline& pipeline)
      : StrategyBatches(std::make_unique<DistributedPipelineDataset>(pipeline)) {}
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_TRAIN_BATCH_H_
