#ifndef DTRUN_MODELS_DATA_PIPELINE_DATASET_H_
#define DTRUN_MODELS_DATA_PIPELINE_DATASET_H_

#include <dtrun/dataset.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "models/data/distribute.h"
#include "models/data/iterator.h"
#include "models/data/pipeline.h"

namespace dtrun::models {

/// A distributed pipeline as one replica sees it. Inputs go from the data set's memory straight to
/// where they are read; targets are the labels, i32.
class DistributedPipelineDataset : public DistributedDataset {
 public:
  explicit DistributedPipelineDataset(const DistributedPipeline& pipeline);

  uint64_t batches_per_epoch() const override { return batches_; }
  uint64_t largest_batch() const override { return largest_; }
  void StartEpoch(uint64_t epoch, uint64_t first_batch = 0) override;
  bool Next(DistributedBatch& batch) override;

 private:
  uint64_t batches_, largest_;
  Iterator iterator_;
};

/// A pipeline as what a strategy distributes. Errors: those of DistributedPipeline. Thread-safe.
class PipelineDataset : public dtrun::Dataset {
 public:
  /// `compute_threads`: see DistributeOptions.
  explicit PipelineDataset(Pipeline pipeline, int compute_threads = 0)
      : pipeline_(std::move(pipeline)), compute_threads_(compute_threads) {}

  std::unique_ptr<DistributedDataset> Distribute(
      Communicator& replicas, InputSplit split) const override;
  std::unique_ptr<DistributedDataset> DistributePerReplica(Communicator& replicas) const override;

 private:
  Pipeline pipeline_;
  int compute_threads_;
};

}  // namespace dtrun::models

#endif
