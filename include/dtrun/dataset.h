#ifndef DTRUN_DATASET_H_
#define DTRUN_DATASET_H_

#include <dtrun/communicator.h>
#include <dtrun/error.h>
#include <dtrun/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace dtrun {

/// One replica's part of one global batch. What it points to belongs to its DistributedDataset.
struct DistributedBatch {
  uint64_t examples = 0;  ///< of this replica; none is possible
  /// Of its first example in the global batch, so that random numbers need not depend on the number
  /// of replicas.
  uint64_t first_position = 0;
  /// Examples of all replicas together, as many as there truly are: what a sum of losses is divided
  /// by.
  uint64_t global_batch = 0;
  /// Writes the inputs of the examples [first, first + count), row-major, to `inputs`.
  std::function<void(uint64_t first, uint64_t count, float* inputs)> write_inputs = {};
  Buffer targets = {};         ///< of all examples
  Buffer sample_weights = {};  ///< f32, what each example counts for; null: 1
};

/// A data set as one replica sees it: its part of every global batch, epoch by epoch. All replicas
/// get the same number of batches in an epoch, so that they can step together. Not thread-safe.
class DistributedDataset {
 public:
  virtual ~DistributedDataset() = default;

  /// Global batches of an epoch, the same on all replicas; 0: it does not end.
  virtual uint64_t batches_per_epoch() const = 0;
  /// Examples of this replica in a batch, at most.
  virtual uint64_t largest_batch() const = 0;
  /// The next batch is number `first_batch` of epoch `epoch`, both from 0.
  virtual void StartEpoch(uint64_t epoch, uint64_t first_batch = 0) = 0;
  /// Fills `batch`, which is valid until the next call; false at the end of the epoch.
  virtual bool Next(DistributedBatch& batch) = 0;
};

/// Which examples a replica gets of a data set that says its global batch.
enum class InputSplit {
  kAuto,  ///< kFile where there are files for all replicas, else kData
  kFile,  ///< whole files are dealt to the replicas
  kData,  ///< every global batch is cut into parts, of sizes that differ by one at most
  kOff,   ///< every replica passes all examples through, its share of the global batch at a time
};

/// What a strategy distributes. Implement it to train from data of your own; models/data does.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// Its batches are those of all replicas together, and are cut. Collective over `replicas`, whose
  /// ranks are the replicas; errors are the same on all of them.
  virtual std::unique_ptr<DistributedDataset> Distribute(
      Communicator& replicas, InputSplit split) const = 0;
  /// Its batches are this replica's own, and are not cut; the replicas may have different data
  /// sets. Collective, likewise.
  virtual std::unique_ptr<DistributedDataset> DistributePerReplica(
      Communicator& replicas) const = 0;
};

/// What a function that makes a replica's own data set is told. Every rank has one input pipeline
/// and one replica.
struct InputContext {
  int num_input_pipelines = 1;
  int input_pipeline_id = 0;
  int num_replicas_in_sync = 1;

  /// What a replica's batch is in a global batch of `global_batch` examples. Throws
  /// kInvalidArgument where that leaves a rest, since all replicas would have to know whose it is.
  uint64_t PerReplicaBatchSize(uint64_t global_batch) const {
    const auto replicas = static_cast<uint64_t>(num_replicas_in_sync);
    if (global_batch > 0 && global_batch % replicas == 0) return global_batch / replicas;
    throw Error(
        ErrorCode::kInvalidArgument, "a global batch of " + std::to_string(global_batch) +
                                         " examples for " + std::to_string(replicas) +
                                         " replicas; expected a multiple of that, more than 0");
  }
};

/// Makes the data set of one replica, whose batches count this replica's examples.
using DatasetFunction = std::function<std::unique_ptr<Dataset>(const InputContext&)>;

}  // namespace dtrun

#endif
