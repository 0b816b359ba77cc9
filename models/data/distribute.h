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

/// Which examples a rank gets.
enum class Sharding {
  kAuto,  ///< kFile where there are several files, and one or more for each rank; else kData
  /// Whole files are dealt to the ranks, file i to rank i % ranks, and each rank passes its own
  /// through the pipeline. No rank reads another's files, and no global batch is what one rank
  /// would compute. Ranks whose files have fewer examples end an epoch with empty batches.
  kFile,
  /// Every global batch is cut into one contiguous part per rank, of sizes that differ by at most
  /// one: N ranks together compute what one rank would, example by example, position by position.
  /// A Position means the same examples for any number of ranks.
  kData,
  /// Every rank passes all examples through the pipeline, its share of the global batch at a time,
  /// so that ranks see the same examples: for pipelines that differ between ranks on purpose.
  kOff,
};

const char* NameOf(Sharding sharding);

struct DistributeOptions {
  Sharding sharding = Sharding::kAuto;
  /// With how many threads this rank computes, as Context::threads() says: a Prefetch's thread
  /// runs on another CPU if this process has one to spare, and else does not push them aside when
  /// it wakes up. 0: as many as the process has CPUs.
  int compute_threads = 0;
};

struct InputContext {
  int rank = 0, ranks = 1;
};
/// Makes one rank's own pipeline, as with Sharding::kOff; but its Batch counts this rank's examples
/// only.
using PipelineFunction = std::function<Pipeline(const InputContext&)>;

/// The pipeline of all ranks of a communicator, as this rank sees it. In each epoch all ranks get
/// the same number of batches, with the true number of examples in each, so that they can step
/// together. Immutable; thread-safe.
class DistributedPipeline {
 public:
  /// Collective. Errors, the same on all ranks: kMismatch, naming a rank whose pipeline or options
  /// differ from rank 0's; kInvalidArgument: no Batch; a global batch with fewer examples than
  /// ranks; with kFile fewer files than ranks, naming both numbers. What a rank's own `function`
  /// throws is thrown on all, naming the rank.
  DistributedPipeline(
      Communicator& communicator, const Pipeline& pipeline, const DistributeOptions& options = {});
  DistributedPipeline(
      Communicator& communicator, const PipelineFunction& function,
      const DistributeOptions& options = {});

  Iterator Begin(const Position& start = {}) const;

  /// Of one epoch, the same number on all ranks; kInfinite.
  uint64_t batches() const;
  uint64_t global_batch() const;
  /// Examples of this rank in a full batch, at most: what a network has to have room for.
  uint64_t largest_local_batch() const;
  const ExampleShape& shape() const;
  /// What kAuto has become.
  Sharding sharding() const;
  /// One line for the user, the same on all ranks, when ranks see the same examples; else "".
  const std::string& warning() const;

 private:
  struct Plan;
  std::shared_ptr<const Plan> plan_;
};

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

#endif  // DTRUN_MODELS_DATA_DISTRIBUTE_H_
