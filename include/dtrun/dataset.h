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

/// One replica's part of one global batch. Its pointers and buffers belong to the
/// DistributedDataset.
struct DistributedBatch {
  uint64_t examples = 0;  ///< of this replica; may be 0
  /// The position of this replica's first example in the global batch. Random numbers that use it
  /// do not depend on the number of replicas.
  uint64_t first_position = 0;
  /// The actual number of examples of all replicas together. Divide a sum of losses by it.
  uint64_t global_batch = 0;
  /// Writes the inputs of the examples [first, first + count), row-major, to `inputs`.
  std::function<void(uint64_t first, uint64_t count, float* inputs)> write_inputs = {};
  Buffer targets = {};         ///< of all examples
  Buffer sample_weights = {};  ///< f32, the weight of each example; null: 1
  /// The number of each example in the data set, for logs; null: not known.
  const uint64_t* example_numbers = nullptr;
};

/// A data set as one replica sees it: its part of every global batch, epoch by epoch. All replicas
/// get the same number of batches in an epoch, so that they can step together. Not thread-safe.
class DistributedDataset {
 public:
  virtual ~DistributedDataset() = default;

  /// The number of global batches in an epoch, the same on all replicas. 0: the epoch does not end,
  /// or this replica does not know its number (a worker of parameter servers).
  virtual uint64_t batches_per_epoch() const = 0;
  /// The largest number of examples that this replica gets in a batch.
  virtual uint64_t largest_batch() const = 0;
  /// Sets the next batch: number `first_batch` of epoch `epoch`, both from 0.
  virtual void StartEpoch(uint64_t epoch, uint64_t first_batch = 0) = 0;
  /// Fills `batch`, which is valid until the next call. Returns false at the end of the epoch.
  virtual bool Next(DistributedBatch& batch) = 0;
};

/// The way in which a data set with global batches is split between the replicas.
enum class InputSplit {
  kAuto,  ///< kFile if there are files for all replicas, else kData
  kFile,  ///< whole files are dealt to the replicas
  kData,  ///< every global batch is cut into parts; their sizes differ by at most one
  kOff,   ///< every replica reads all examples, its share of the global batch at a time
};

/// The use of the batches of a data set.
enum class InputUse {
  kTraining,    ///< a step follows each batch
  kEvaluation,  ///< no step follows
};

/// A data set that a strategy can distribute. To train from your own data, implement this class, as
/// models/data does.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// Makes a data set with batches of all replicas together, which are cut. Collective over
  /// `replicas`, whose ranks are the replicas. All replicas get the same error.
  virtual std::unique_ptr<DistributedDataset> Distribute(
      Communicator& replicas, InputSplit split) const = 0;
  /// Makes a data set with this replica's own batches, which are not cut. The replicas may have
  /// different data sets. Collective. All replicas get the same error.
  virtual std::unique_ptr<DistributedDataset> DistributePerReplica(
      Communicator& replicas) const = 0;
};

/// The argument of a function that makes a replica's own data set. Every rank has one input
/// pipeline and one replica.
struct InputContext {
  int num_input_pipelines = 1;   ///< the number of input pipelines, one for each replica
  int input_pipeline_id = 0;     ///< the number of this replica's pipeline, from 0
  int num_replicas_in_sync = 1;  ///< the number of replicas in a step

  /// Returns the size of a replica's batch in a global batch of `global_batch` examples. Throws
  /// kInvalidArgument if the replicas do not divide `global_batch`.
  uint64_t PerReplicaBatchSize(uint64_t global_batch) const {
    const auto replicas = static_cast<uint64_t>(num_replicas_in_sync);
    if (global_batch > 0 && global_batch % replicas == 0) return global_batch / replicas;
    throw Error(
        ErrorCode::kInvalidArgument,
        "a global batch of " + std::to_string(global_batch) + " examples for " +
            std::to_string(replicas) +
            " replicas; expected a multiple of the number of replicas, more than 0");
  }
};

/// Makes the data set of one replica. Its batches count this replica's examples.
using DatasetFunction = std::function<std::unique_ptr<Dataset>(const InputContext&)>;

}  // namespace dtrun

#endif
