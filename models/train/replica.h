#ifndef DTRUN_MODELS_TRAIN_REPLICA_H_
#define DTRUN_MODELS_TRAIN_REPLICA_H_

#include <dtrun/communicator.h>
#include <dtrun/distributed_optimizer.h>
#include <dtrun/strategy.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "models/layers/sequential.h"
#include "models/losses/loss.h"
#include "models/optim/rate_optimizer.h"
#include "models/train/batch.h"
#include "models/train/gradient_tree.h"

namespace dtrun::models {

enum class Mode { kTraining, kInference };

/// Consecutive examples of a batch, as many as the network takes at once. They are so few that the
/// activations between layers stay in a core's caches.
struct Chunk {
  const ReplicaBatch* batch = nullptr;
  size_t first = 0, examples = 0;
  int leaf = 0;           ///< index in this replica's leaves of the GradientTree; 0 without a tree
  Range leaf_range = {};  ///< the leaf's examples in the batch; all without a tree

  bool is_first() const { return first == leaf_range.begin; }
  bool is_last() const { return first + examples == leaf_range.end; }
  Targets targets(size_t outputs) const;
  std::span<const float> sample_weights() const;
};

struct ReplicaOptions {
  bool overlap = true;  ///< reduces gradients during the backward pass, not after it
  /// Does not sum gradients. Each replica steps with the mean gradient of its share of the
  /// batch. Adaptive summation combines the changes of the steps (DistributedOptions::op). Needs a
  /// power of two of replicas, each with a copy of the parameters, and no tree.
  bool adasum = false;
  /// Sums gradients so that the bits do not depend on the number of replicas. Must outlive the
  /// replica. nullptr: gradients are added in the order of the chunks, then of the ranks.
  GradientTree* tree = nullptr;
  /// Trains with a scaled loss: the optimizer is wrapped in a LossScaleOptimizer, and its state
  /// includes the scale. nullopt: no scale.
  std::optional<LossScaleOptions> loss_scale = {};
};

/// One rank's copy of a network that all ranks train: the parts of a training loop. In a step,
/// every replica has its share of the global batch:
///
///   for (const Chunk& chunk : replica.Chunks(batch)) {
///     const Outputs outputs = replica.Forward(chunk, Mode::kTraining);
///     replica.Backward(chunk, loss);
///   }
///   replica.Apply();
///
/// The gradients of all replicas are added, not averaged, because the loss is already divided by
/// the global batch (AverageLoss). ReplicaOptions::adasum differs. So N replicas compute the same
/// as one replica with the same global batch. Not thread-safe. Throws the errors of Communicator
/// and of the loss.
class Replica {
 public:
  /// All replicas start from rank 0's parameters and optimizer state. Collective. The arguments
  /// must outlive this object. Throws Error kInvalidArgument if options.tree is set and the network
  /// has layers with running statistics. A tree does not sum these.
  Replica(
      Communicator& world, Sequential& model, RateOptimizer& optimizer,
      const ReplicaOptions& options = {});
  /// The strategy places the network's parameters, until this object is destroyed. Throws the
  /// errors of StrategyScope::Distribute.
  Replica(
      Strategy& strategy, Sequential& model, RateOptimizer& optimizer,
      const ReplicaOptions& options = {});
  /// Waits for the enqueued work of the network's device.
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  /// Cuts this replica's share into chunks. An empty share has no chunks and adds no gradient. With
  /// a tree and kTraining, throws Error kInvalidArgument if the share is not this rank's PartOf the
  /// global batch.
  std::vector<Chunk> Chunks(const ReplicaBatch& batch, Mode mode = Mode::kTraining) const;
  /// Returns the outputs for the chunk's examples, valid until the next Forward. kTraining uses
  /// dropout, and this chunk's Backward must follow.
  Outputs Forward(const Chunk& chunk, Mode mode);
  /// Adds the gradient of the loss of the chunk's outputs to the gradient of the step. The last
  /// chunk of the batch starts the reduction of gradients.
  void Backward(const Chunk& chunk, const Loss& loss);
  /// Waits for the sum of all replicas' gradients and makes the optimizer's step. Collective.
  /// Without a Backward, as for an empty share, this replica adds zero to the sum. With `adasum`:
  /// makes the optimizer's step and waits for the sum of all replicas' steps.
  void Apply();
  /// Replaces Backward and Apply on a replica that has failed in its part of a step. Then Apply
  /// returns on the other replicas, and so do layers that exchange data. Afterwards the parameters
  /// are invalid on all replicas. A worker of parameter servers pushes nothing.
  void Abandon();

  /// Sets the network's buffers to the mean over all replicas, for an evaluation or a checkpoint;
  /// see models/layers/batch_norm.h. Collective.
  void AverageBuffers();
  /// The regularisation term of the global batch's loss. 0 without regularised layers. A replica's
  /// part is this term divided by the number of replicas.
  double RegularizationLoss() const { return model_.RegularizationLoss(); }
  /// The tree's leaves of this replica, and of all replicas together. Without a tree, every replica
  /// is one leaf.
  int leaf_count() const { return options_.tree ? options_.tree->leaf_count() : 1; }
  int all_leaves() const { return options_.tree ? options_.tree->leaves() : world_.size(); }

  /// The number of optimizer steps. It selects the dropout masks. On a worker of parameter servers,
  /// the number of the step that the worker was given; see StrategyOptimizer::assigned_step.
  uint64_t step() const { return optimizer_->assigned_step().value_or(step_); }
  /// Continues after step `step`, for example after loading a checkpoint.
  void set_step(uint64_t step) { step_ = step; }
  /// Call ParametersChanged after a change of parameters or buffers outside Apply.
  void ParametersChanged() { prepared_ = false; }

  /// Returns the values of the parameters and of the network's buffers, for code other than Apply
  /// that writes them, for example to load a checkpoint. All replicas write all values, and the
  /// same values. The memory is host memory, also if the network is on a GPU, and valid until the
  /// next step. Local.
  std::vector<NamedBuffer> BorrowWeights();
  /// Makes the written values visible to every replica. Collective.
  void ReturnWeights();
  /// The same for the optimizer's whole state (StrategyOptimizer::BorrowState), to read or to
  /// write. Both are collective.
  std::vector<NamedBuffer> BorrowState();
  void ReturnState();

  Communicator& world() { return world_; }
  /// Whether this replica prints and writes files: see Strategy::is_chief.
  bool is_chief() const { return is_chief_; }
  Sequential& model() { return model_; }
  RateOptimizer& optimizer() { return inner_; }
  /// The strategy's optimizer. Its values and state are in the memory of the network's device.
  StrategyOptimizer& distributed_optimizer() { return *optimizer_; }
  /// The scale of the next step's loss. Without `loss_scale`: always 1.
  LossScale loss_scale() const { return scaled_ ? scaled_->state_of_scale() : LossScale(); }
  ReducerStatistics statistics() const { return optimizer_->statistics(); }

 private:
  // Returns the optimizer for the strategy to wrap: with a loss scale, one around the inner one.
  Optimizer& Scaled();
  void Begin();
  Pass PassOf(const Chunk& chunk, Mode mode) const;
  void AppendChunks(Chunk leaf, std::vector<Chunk>& chunks) const;
  // The number of examples in the mean of the loss, and this replica's factor for regularisation.
  uint64_t LossExamples(const ReplicaBatch& batch) const;
  double RegularizationScale() const {
    return inner_scale() * (options_.adasum ? 1 : 1.0 / all_leaves());
  }
  double inner_scale() const { return scaled_ ? scaled_->loss_scale() : 1; }
  void BeginLeaf(int leaf);
  void EndLeaf();
  bool in_last_leaf() const { return leaves_done_ + 1 == leaf_count(); }
  void OnComplete(size_t parameter);
  void MarkReady(size_t parameter);
  Pass EmptyPass() const;
  void PassNothing();

  Communicator& world_;
  bool is_chief_;
  Sequential& model_;
  RateOptimizer& inner_;
  ReplicaOptions options_;
  std::unique_ptr<LossScaleOptimizer> scaled_;  // around inner_; null without a loss scale
  std::unique_ptr<StrategyOptimizer> optimizer_;
  uint64_t step_ = 0;
  bool prepared_ = false;          // the network has seen the current parameters
  uint64_t prepared_version_ = 0;  // of the values
  bool forwards_ = false;          // a training Forward ran in this step
  int leaves_done_ = 0;            // in this step
  std::vector<bool> marked_;
  std::vector<float> factors_;
  HostCopies weight_copies_, state_copies_;
};

/// The digest of the parameters' values, in order (models/train/agreement.h).
uint64_t DigestOf(Sequential& model);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_TRAIN_REPLICA_H_
