#ifndef DTRUN_MODELS_TRAIN_PIPELINE_BATCHES_H_
#define DTRUN_MODELS_TRAIN_PIPELINE_BATCHES_H_

#include <cstdint>

#include "models/data/distribute.h"
#include "models/data/iterator.h"
#include "models/train/batch.h"

namespace dtrun::models {

/// A distributed pipeline as a loop's batches. Inputs go from the data set's memory straight to
/// where the network reads them.
class PipelineBatches : public BatchSource {
 public:
  explicit PipelineBatches(const DistributedPipeline& pipeline)
      : steps_(pipeline.batches() == kInfinite ? 0 : pipeline.batches()),
        iterator_(pipeline.Begin()) {}

  uint64_t steps_per_epoch() const override { return steps_; }
  void StartEpoch(uint64_t epoch, uint64_t first_step = 0) override;
  bool Next(ReplicaBatch& batch) override;

  /// For how long this rank has waited for batches.
  double wait_seconds() const { return iterator_.wait_seconds(); }

 private:
  uint64_t steps_;
  Iterator iterator_;
};

}  // namespace dtrun::models

#endif
