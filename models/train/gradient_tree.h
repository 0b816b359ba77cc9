#ifndef DTRUN_MODELS_TRAIN_GRADIENT_TREE_H_
#define DTRUN_MODELS_TRAIN_GRADIENT_TREE_H_

#include <dtrun/dtrun.h>

#include <functional>
#include <vector>

#include "models/data/sampling.h"
#include "models/layers/loss.h"
#include "models/layers/sequential.h"
#include "models/layers/tensor.h"

namespace dtrun::models {

/// Sums gradients so that 1, 2, 4, ... ranks get the same bits of the same global batch.
///
/// The global batch is cut by position into a fixed number of leaves, a power of two that has
/// nothing to do with the number of ranks. Their gradients are added in a balanced binary tree. A
/// rank computes a whole subtree of it; dtrun's reduction adds the ranks' sums in the rest of it.
///
///   8 leaves on 2 ranks:   rank 0: (0 + 1) + (2 + 3)   rank 1: (4 + 5) + (6 + 7)   then the two
///
/// The bits are equal if, besides, the ranks compute with the same number of threads on the same
/// kind of CPU, and the network is built alike: by PlanChunks of LargestLeaf. Costs memory of
/// log2(leaves per rank) further gradients, and one addition of all gradients per leaf.
/// Not thread-safe.
class GradientTree {
 public:
  /// `parameters` are f32 and outlive it. Collective. Throws Error kInvalidArgument, on all ranks
  /// alike, when Obstacle has something to say, or when the ranks of a host do not follow each
  /// other.
  GradientTree(std::vector<Parameter>& parameters, int leaves, Context& job);

  /// Why the tree cannot be continued over these ranks, or "". `leaves` has to be a power of two,
  /// `ranks` another that is not larger, and the hosts have to hold the same number of ranks each,
  /// since a reduction adds those of a host first.
  static std::string Obstacle(int leaves, int ranks, const std::vector<Host>& hosts);

  /// Examples of the largest leaf.
  static uint64_t LargestLeaf(uint64_t global_batch, int leaves);

  int leaves() const { return leaves_; }
  /// The leaves of this rank.
  int first_leaf() const { return first_leaf_; }
  int leaf_count() const { return leaf_count_; }
  /// Positions in the global batch that leaf `leaf` of all holds: contiguous, in order.
  Range PositionsOf(int leaf, uint64_t global_batch) const;

  /// Calls compute(leaf, on_leaf_ready) for each leaf of this rank, in order. It leaves the leaf's
  /// gradients where the parameters' `gradient` points, to other memory until the last leaf, says
  /// on_leaf_ready(i) of each that is complete, and returns the leaf's tally. In the end their sums
  /// are where the gradients were, and on_ready(i) was called for each as soon as it was complete.
  /// Returns the sum of the tallies, made in the tree as well.
  using Compute = std::function<Tally(int leaf, const OnReady& on_leaf_ready)>;
  Tally Sum(const Compute& compute, const OnReady& on_ready);

 private:
  Tally ComputeInto(size_t level, const Compute& compute, int leaf);

  std::vector<Parameter>& parameters_;
  int leaves_, first_leaf_ = 0, leaf_count_ = 0;
  std::vector<size_t> offsets_;   // of each parameter in a sum
  std::vector<FloatArray> sums_;  // of subtrees, the largest first
};

}  // namespace dtrun::models

#endif
