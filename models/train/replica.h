#ifndef DTRUN_MODELS_TRAIN_REPLICA_H_
#define DTRUN_MODELS_TRAIN_REPLICA_H_

#include <dtrun/communicator.h>
#include <dtrun/strategy.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "models/layers/sequential.h"
#include "models/losses/loss.h"
#include "models/optim/rate_optimizer.h"
#include "models/train/batch.h"
#include "models/train/gradient_tree.h"

namespace dtrun::models {

/// How gradients are scaled so that small ones do not become zero in f16, and large ones are
/// noticed (P. Micikevicius et al., "Mixed precision training", ICLR 2018, section 3.2). A step
/// whose reduced gradients are not all finite changes nothing and halves the scale; so many good
/// ones in a row double it. Every rank comes to the same, since all have the same sums.
struct LossScale {
  double scale = 1;            ///< 1 or more
  uint64_t good_steps = 0;     ///< in a row, since the scale has changed
  uint64_t skipped_steps = 0;  ///< since training began
  bool operator==(const LossScale&) const = default;
};

enum class Mode { kTraining, kInference };

/// Consecutive examples of a batch, as many as the network takes at once: what passes from layer to
/// layer then stays in a core's caches.
struct Chunk {
  const ReplicaBatch* batch = nullptr;
  size_t first = 0, examples = 0;
  int leaf = 0;           ///< of this replica's leaves of the GradientTree; 0 without one
  Range leaf_range = {};  ///< examples of the batch that the leaf holds; all without a tree

  bool is_first() const { return first == leaf_range.begin; }
  bool is_last() const { return first + examples == leaf_range.end; }
  Targets targets(size_t outputs) const;
  std::span<const float> sample_weights() const;
};

struct ReplicaOptions {
  bool overlap = true;  ///< gradients are reduced while the backward pass runs, not after it
  /// Gradients are not summed: each replica steps with the mean over its own share of the batch,
  /// and what the steps change is combined by adaptive summation (DistributedOptions::op). Of a
  /// power of two of replicas, each with a copy of the parameters; without a tree.
  bool adasum = false;
  /// Sums gradients so that the number of replicas makes no difference to a bit; outlives the
  /// replica. nullptr: in the order of the chunks, then of the ranks.
  GradientTree* tree = nullptr;
};

/// One rank's copy of a network that all ranks train: the parts that every training loop is made
/// of. A step, on every replica with its own share of the global batch:
///
///   for (const Chunk& chunk : replica.Chunks(batch)) {
///     const Outputs outputs = replica.Forward(chunk, Mode::kTraining);
///     replica.Backward(chunk, loss);
///   }
///   replica.Apply();
///
/// The gradients of all replicas are added, not averaged, since the loss is divided by the global
/// batch already (AverageLoss); but see ReplicaOptions::adasum. So N replicas compute what one
/// would on the same global batch. Not thread-safe. Errors are those of Communicator and of the
/// loss.
class Replica {
 public:
  /// Collective: all replicas start from rank 0's parameters and optimizer state. Everything given
  /// outlives it. Throws Error kInvalidArgument for a tree together with layers that keep running
  /// statistics, since those do not come from a tree.
  Replica(
      Communicator& world, Sequential& model, RateOptimizer& optimizer,
      const ReplicaOptions& options = {});
  /// As a strategy spreads it: the network's parameters lie where the strategy puts them, until
  /// this object goes. Errors: those of StrategyScope::Distribute.
  Replica(
      Strategy& strategy, Sequential& model, RateOptimizer& optimizer,
      const ReplicaOptions& options = {});

  /// None for an empty share, which has no part in the gradient. Throws Error kInvalidArgument for
  /// kTraining with a tree when the share is not this rank's PartOf the global batch.
  std::vector<Chunk> Chunks(const ReplicaBatch& batch, Mode mode = Mode::kTraining) const;
  /// The outputs of the chunk's examples, valid until the next Forward. Training: with dropout, and
  /// to be followed by this chunk's Backward.
  Outputs Forward(const Chunk& chunk, Mode mode);
  /// Adds the gradient of the loss of the chunk's outputs to that of the step. With the last chunk
  /// of the batch, the gradients begin to be reduced.
  void Backward(const Chunk& chunk, const Loss& loss);
  /// Collective: waits for the sum of all replicas' gradients and lets the optimizer step. Without
  /// a Backward, as with an empty share, this replica's part of the sum is zero. With `adasum`:
  /// lets the optimizer step, and waits for the sum of all replicas' steps.
  void Apply();
  /// Instead of Backward and Apply on a replica that has failed in its part of a step: the others'
  /// Apply returns, and so does the exchange of data in layers that synchronise. What the step did
  /// to the parameters is then of no use on any replica.
  void Abandon();

  /// Collective: the network's buffers are the mean of all replicas' then, as when it is evaluated
  /// or saved; see models/layers/batch_norm.h.
  void AverageBuffers();
  /// What is added to the loss of the global batch; 0 without regularised layers. A replica's part
  /// of it is this divided by the number of replicas.
  double RegularizationLoss() const { return model_.RegularizationLoss(); }
  /// Leaves of the tree that are this replica's, and that all replicas have together; without a
  /// tree, every replica is one.
  int leaf_count() const { return options_.tree ? options_.tree->leaf_count() : 1; }
  int all_leaves() const { return options_.tree ? options_.tree->leaves() : world_.size(); }

  /// Optimizer steps done, which select the dropout masks.
  uint64_t step() const { return step_; }
  /// Goes on after another step, as when a checkpoint was read.
  void set_step(uint64_t step) { step_ = step; }
  /// To be called when something else than Apply has changed the parameters or buffers.
  void ParametersChanged() { prepared_ = false; }

  Communicator& world() { return world_; }
  Sequential& model() { return model_; }
  RateOptimizer& optimizer() { return inner_; }
  /// For what writes the parameters, or reads or writes the optimizer's state, besides Apply.
  StrategyOptimizer& distributed_optimizer() { return *optimizer_; }
  ReducerStatistics statistics() const { return optimizer_->statistics(); }

 private:
  Replica(
      Communicator& world, Sequential& model, RateOptimizer& optimizer,
      const ReplicaOptions& options, std::unique_ptr<StrategyOptimizer> distributed);
  Pass PassOf(const Chunk& chunk, Mode mode) const;
  void AppendChunks(Chunk leaf, std::vector<Chunk>& chunks) const;
  // Of how many the loss is the mean, and which part of the regularisation it has.
  uint64_t LossExamples(const ReplicaBatch& batch) const;
  double RegularizationScale() const { return options_.adasum ? 1 : 1.0 / all_leaves(); }
  void BeginLeaf(int leaf);
  void EndLeaf();
  bool in_last_leaf() const { return leaves_done_ + 1 == leaf_count(); }
  void OnComplete(size_t parameter);
  void MarkReady(size_t parameter);
  Pass EmptyPass() const;
  void PassNothing();

  Communicator& world_;
  Sequential& model_;
  RateOptimizer& inner_;
  std::unique_ptr<StrategyOptimizer> optimizer_;
  ReplicaOptions options_;
  uint64_t step_ = 0;
  bool prepared_ = false;  // the network has seen the parameters as they are
  bool forwards_ = false;  // in this step
  int leaves_done_ = 0;    // in this step
  std::vector<bool> marked_;
  std::vector<float> factors_;
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_TRAIN_REPLICA_H_
