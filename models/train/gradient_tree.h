#ifndef DTRUN_MODELS_TRAIN_GRADIENT_TREE_H_
#define DTRUN_MODELS_TRAIN_GRADIENT_TREE_H_

#include <dtrun/context.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/data/sampling.h"
#include "models/layers/tensor.h"

namespace dtrun::models {

/// The chunks in which a rank's share of a batch passes through the network; see SequentialOptions.
struct ChunkPlan {
  int micro_batch = 1, micro_batches = 1;
  bool operator==(const ChunkPlan&) const = default;
};

/// The size of a core's second-level cache. 0 if the system does not report it.
uint64_t SecondLevelCacheBytes();

/// The largest micro-batch that is fast with such a cache: 8 examples with 512 KiB, 16 with 1 MiB
/// or an unknown cache, 32 with 2 MiB.
uint64_t LargestMicroBatch(uint64_t cache_bytes);

/// Cuts `examples` into as few chunks of at most 128 examples as possible, of about equal size.
/// Cuts the chunks into micro-batches in the same way. The last chunk and micro-batch may have
/// unused places, which are computed too. All ranks with equal caches get the same plan. Examples
/// with 1 MiB:
///   PlanChunks(1024) -> {16, 8}: 8 chunks of 128      PlanChunks(100) -> {15, 7}: 1 chunk of 105
ChunkPlan PlanChunks(uint64_t examples, uint64_t cache_bytes = SecondLevelCacheBytes());

/// Sums gradients so that 1, 2, 4, ... ranks get the same bits for the same global batch.
///
/// The global batch is cut by position into a fixed number of leaves. The number is a power of two
/// and does not depend on the number of ranks. The leaves' gradients are added in a balanced binary
/// tree. Each rank computes one subtree. dtrun's reduction adds the ranks' sums in the upper part
/// of the tree.
///
///   8 leaves on 2 ranks:   rank 0: (0 + 1) + (2 + 3)   rank 1: (4 + 5) + (6 + 7)   then the two
///
/// The bits are equal under two conditions. The ranks compute with the same number of threads on
/// the same kind of CPU. The network has the chunks of PlanChunks(LargestLeaf). The tree costs
/// memory for log2(leaves per rank) more sets of gradients, and one addition of all gradients per
/// leaf. Pass the tree to a Replica in ReplicaOptions. Not thread-safe.
class GradientTree {
 public:
  /// `parameters` are f32 and must outlive this object. Collective. Throws Error kInvalidArgument
  /// on all ranks if Obstacle returns a text, or if the ranks of a host are not consecutive.
  GradientTree(std::vector<Parameter>& parameters, int leaves, Context& job);

  /// Returns the reason why these ranks cannot form a tree, or "". `leaves` and `ranks` must be
  /// powers of two, with `ranks` not above `leaves`. Every host must have the same number of ranks,
  /// because a reduction first adds the sums of a host's ranks.
  static std::string Obstacle(int leaves, int ranks, const std::vector<Host>& hosts);

  /// The number of examples in the largest leaf.
  static uint64_t LargestLeaf(uint64_t global_batch, int leaves);

  int leaves() const { return leaves_; }
  /// The leaves of this rank are [first_leaf, first_leaf + leaf_count).
  int first_leaf() const { return first_leaf_; }
  int leaf_count() const { return leaf_count_; }
  /// The positions of leaf `leaf` in the global batch. `leaf` counts the leaves of all ranks.
  Range PositionsOf(int leaf, uint64_t global_batch) const;

  /// Begins leaf `n` of this rank, from 0. Until EndLeaf, the parameters' `gradient` points to the
  /// leaf's memory. Every step computes every leaf once, in order.
  void BeginLeaf(int n);
  void EndLeaf();
  /// Call AddEarlierLeaves in the last leaf of this rank, when the gradient of parameter `i` is
  /// complete. It adds the sums of all earlier leaves of this rank to that gradient.
  void AddEarlierLeaves(size_t i);
  /// Ends a leaf after an error. The parameters' `gradient` points to its earlier memory again.
  void AbandonLeaf();

 private:
  bool is_last(int n) const { return n + 1 == leaf_count_; }

  std::vector<Parameter>& parameters_;
  int leaves_, first_leaf_ = 0, leaf_count_ = 0;
  int leaf_ = 0;                  // of this rank: the last leaf that was begun
  std::vector<size_t> offsets_;   // of each parameter in a sum
  std::vector<FloatArray> sums_;  // of subtrees, the largest first
  std::vector<void*> results_;    // the parameters' own gradients while a leaf has redirected them
};

/// Adds the values in a balanced binary tree. Their number must be a power of two.
double SumInTree(std::span<const double> values);

}  // namespace dtrun::models

#endif
