#ifndef DTRUN_MODELS_TRAIN_GRADIENT_TREE_H_
#define DTRUN_MODELS_TRAIN_GRADIENT_TREE_H_

#include <dtrun/dtrun.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/data/sampling.h"
#include "models/layers/tensor.h"

namespace dtrun::models {

/// How a rank's share of a batch goes through the network: see SequentialOptions.
struct ChunkPlan {
  int micro_batch = 1, micro_batches = 1;
  bool operator==(const ChunkPlan&) const = default;
};

/// Bytes of a core's second-level cache; 0 where the system does not tell.
uint64_t SecondLevelCacheBytes();

/// The most examples of a micro-batch that are fast with such a cache: 8 with 512 KiB, 16 with 1
/// MiB or an unknown one, 32 with 2 MiB.
uint64_t LargestMicroBatch(uint64_t cache_bytes);

/// Cuts `examples` into as few chunks of at most 128 as possible, of about equal size, and these
/// into micro-batches likewise: what fills the last ones up is computed in vain. Equal on all ranks
/// whose CPUs have equal caches. With 1 MiB:
///   PlanChunks(1024) -> {16, 8}: 8 chunks of 128      PlanChunks(100) -> {15, 7}: 1 chunk of 105
ChunkPlan PlanChunks(uint64_t examples, uint64_t cache_bytes = SecondLevelCacheBytes());

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
/// log2(leaves per rank) further gradients, and one addition of all gradients per leaf. A Replica
/// that is given a tree computes with it. Not thread-safe.
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

  /// The gradients of leaf `n` of this rank, from 0, are computed next: until EndLeaf, the
  /// parameters' `gradient` points to where they go. In order, every leaf once per step.
  void BeginLeaf(int n);
  void EndLeaf();
  /// In the last leaf of this rank, whose gradients go where the sum belongs: parameter `i` is
  /// complete there. Makes its gradient the sum of all leaves of this rank.
  void AddEarlierLeaves(size_t i);
  /// Ends a leaf that could not be computed to the end: the parameters' `gradient` points where it
  /// did before.
  void AbandonLeaf();

 private:
  bool is_last(int n) const { return n + 1 == leaf_count_; }

  std::vector<Parameter>& parameters_;
  int leaves_, first_leaf_ = 0, leaf_count_ = 0;
  int leaf_ = 0;                  // of this rank: the one that was begun last
  std::vector<size_t> offsets_;   // of each parameter in a sum
  std::vector<FloatArray> sums_;  // of subtrees, the largest first
  std::vector<void*> results_;    // where the gradients belong, while they go elsewhere
};

/// The sum of the values, as many as a power of two, added in a balanced binary tree.
double SumInTree(std::span<const double> values);

}  // namespace dtrun::models

#endif
