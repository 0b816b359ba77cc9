#ifndef DTRUN_OPS_ADASUM_TREE_H_
#define DTRUN_OPS_ADASUM_TREE_H_

#include <cstdint>
#include <vector>

#include "ops/collective.h"
#include "ops/reduce/weighted.h"

namespace dtrun::ops {

/// A piece of a tensor: what products are computed over, whoever does.
struct TensorBlock {
  uint64_t first = 0, count = 0;  ///< elements of the buffer
  size_t tensor = 0;
};

/// How the tensors of a buffer, which lie there one after the other, are cut: each by itself, so
/// that its blocks do not depend on its company. Empty tensors have none. Pure.
std::vector<TensorBlock> CutIntoBlocks(const Counts& tensors);

/// How `blocks` are dealt to `size` ranks: in rank order, in runs of about as many elements. The
/// first of each rank, and the end. Pure.
std::vector<size_t> DealBlocks(const std::vector<TensorBlock>& blocks, int size);

/// What the tensors of `size` ranks, a power of two, become: of each tensor a weighted sum of what
/// the ranks bring. Begins with weights of 1, for groups of one rank; at every level two groups
/// that follow each other become one. Pure.
class AdasumTree {
 public:
  AdasumTree(int size, size_t tensor_count);

  /// No two groups are left.
  bool done() const { return group_ == size_; }
  /// Ranks in a group, and pairs of groups.
  int group() const { return group_; }
  int pairs() const { return size_ / group_ / 2; }
  /// By rank.
  const double* weights(size_t tensor) const { return &weights_[tensor * Size()]; }

  /// The next level. `products` are by block and, within that, by pair.
  void Combine(const std::vector<TensorBlock>& blocks, const std::vector<Products>& products);
  /// Multiplies all weights.
  void Scale(double factor);

 private:
  size_t Size() const { return static_cast<size_t>(size_); }

  int size_, group_ = 1;
  std::vector<double> weights_;  // by tensor and rank
};

}  // namespace dtrun::ops

#endif
