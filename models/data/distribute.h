#ifndef DTRUN_MODELS_DATA_DISTRIBUTE_H_
#define DTRUN_MODELS_DATA_DISTRIBUTE_H_

#include <dtrun/communicator.h>
#include <dtrun/dataset.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "models/data/pipeline.h"

namespace dtrun::models {

/// The way in which the examples are split between the ranks.
enum class Sharding {
  kAuto,  ///< kFile if there are several files, at least one for each rank; else kData
  /// Whole files are dealt to the ranks: rank i % ranks reads file i and passes its examples
  /// through the pipeline. No rank reads another rank's files. A global batch differs from the
  /// batch that one rank alone would make. Ranks with fewer examples end an epoch with empty
  /// batches.
  kFile,
  /// Every global batch is cut into one contiguous part per rank. The sizes of the parts differ by
  /// at most one. So N ranks together compute the same as one rank, example by example and position
  /// by position. A Position means the same examples for any number of ranks.
  kData,
  /// Every rank passes all examples through the pipeline, its share of the global batch at a time.
  /// So the ranks see the same examples. Use kOff for pipelines that differ between ranks on
  /// purpose.
  kOff,
};

const char* NameOf(Sharding sharding);

struct DistributeOptions {
  Sharding sharding = Sharding::kAuto;
  /// The number of threads with which this rank computes; see Context::threads(). If the process
  /// may use a further CPU, the thread of a Prefetch runs there. Else the thread shares a CPU, but
  /// does not preempt a computing thread when it wakes up. 0: as many threads as the process has
  /// CPUs.
  int compute_threads = 0;
};

struct InputContext {
  int rank = 0, ranks = 1;
};
/// Makes one rank's own pipeline, as for Sharding::kOff. Its Batch counts only this rank's
/// examples.
using PipelineFunction = std::function<Pipeline(const InputContext&)>;

/// The input pipeline of all ranks of a communicator, as this rank sees it. All ranks get the same
/// number of batches in each epoch, so that they can step together. Each batch has the actual
/// number of examples of all ranks. Immutable; thread-safe.
class DistributedPipeline {
 public:
  /// Collective. All ranks get the same error:
  /// - kMismatch: a rank's pipeline or options differ from rank 0's. The error names the rank.
  /// - kInvalidArgument: no Batch; a global batch with fewer examples than ranks; with kFile, fewer
  ///   files than ranks. The error names both numbers.
  /// - An exception of a rank's `function`. The error names the rank, unless all ranks have it.
  DistributedPipeline(
      Communicator& communicator, const Pipeline& pipeline, const DistributeOptions& options = {});
  DistributedPipeline(
      Communicator& communicator, const PipelineFunction& function,
      const DistributeOptions& options = {});

  Iterator Begin(const Position& start = {}) const;

  /// Batches in an epoch, the same number on all ranks; or kInfinite.
  uint64_t batches() const;
  uint64_t global_batch() const;
  /// The largest number of examples of this rank in a batch. A network needs room for as many.
  uint64_t largest_local_batch() const;
  const ExampleShape& shape() const;
  /// The sharding in use. Never kAuto.
  Sharding sharding() const;
  /// A warning of one line if ranks see the same examples, the same on all ranks; else "".
  const std::string& warning() const;

 private:
  struct Plan;
  std::shared_ptr<const Plan> plan_;
};

/// A distributed pipeline as one replica sees it. write_inputs copies the inputs from the data
/// set's memory straight to the caller's memory. Targets are the labels, i32.
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

/// A pipeline as a data set that a strategy can distribute. Throws the errors of
/// DistributedPipeline. Thread-safe.
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

#endif  // DTRUN_MODELS_DATA_DISTRIBUTE_H_
