#ifndef DTRUN_OPS_COMMUNICATOR_ADASUM_H_
#define DTRUN_OPS_COMMUNICATOR_ADASUM_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "dtrun/types.h"
#include "ops/collective/collective.h"
#include "ops/communicator/communicator_base.h"
#include "ops/engine/progress_engine.h"
#include "ops/reduce/reduce.h"

namespace dtrun::ops {

/// True if Adasum can combine `size` ranks: `size` is a power of two.
bool AdasumTakes(int size);
/// True if Adasum can combine tensors of this type: f16, bf16, f32 or f64.
bool AdasumTakes(DType dtype);

/// Adaptive summation over the ranks of a communicator (S. Maleki et al., "Scaling Distributed
/// Training with Adaptive Summation", 2020). The common part of two tensors a and b is averaged,
/// the orthogonal parts are added:
///
///   a (1 - a.b / (2 a.a)) + b (1 - a.b / (2 b.b))      a factor is 1 where a.a (b.b) is 0
///
/// More ranks are combined in pairs, then pairs of pairs, in rank order. Each tensor of a buffer is
/// combined separately. adasum.cc describes the algorithm.
///
/// The result has the same bits on all ranks. The bits do not depend on the backend, on the
/// location of the buffers or on the other tensors. A NaN or an infinity in a tensor of any rank
/// makes this tensor NaN on all ranks. So does a product of two ranks that overflows f64.
///
/// Started operations may outlive the Adasum. Not thread-safe, like its communicator.
class Adasum {
 public:
  /// Collective: duplicates the communicator. `communicator` and `engine` outlive the Adasum.
  Adasum(Communicator& communicator, Engine& engine);
  ~Adasum();

  /// Starts making `output`, on every rank, the combination of the inputs of all ranks. `tensors`
  /// has the element counts of the tensors, which lie one after the other in the buffers; all ranks
  /// pass the same counts. Both factors of `scale` multiply the result. Input and output may be the
  /// same memory. Buffers in memory from the communicator's Allocate are not copied. All ranks call
  /// Start in the same order among the operations of the communicator. Throws Error
  /// kInvalidArgument if AdasumTakes refuses the number of ranks or the type, or if the counts do
  /// not add up.
  Work Start(Buffer input, Buffer output, Counts tensors, Scale scale = {});

  struct Group;

 private:
  Communicator& communicator_;
  Engine& engine_;
  std::shared_ptr<Group> group_;
};

/// A piece of one tensor. Products are computed block by block.
struct TensorBlock {
  uint64_t first = 0, count = 0;  ///< in elements of the buffer
  size_t tensor = 0;
};

/// Cuts the tensors of a buffer, which lie there one after the other, into blocks. Each tensor is
/// cut separately, so its blocks do not depend on the other tensors. An empty tensor has no blocks.
/// Pure.
std::vector<TensorBlock> CutIntoBlocks(const Counts& tensors);

/// Deals `blocks` to `size` ranks, in rank order, in runs of about equally many elements. Returns
/// the index of each rank's first block, and the number of blocks at the end. Pure.
std::vector<size_t> DealBlocks(const std::vector<TensorBlock>& blocks, int size);

/// Computes, for each tensor, the weights of the ranks' inputs in the result. `size` is a power of
/// two. The weights begin with 1, for groups of one rank. Each level joins neighbouring groups in
/// pairs. Pure.
class AdasumTree {
 public:
  AdasumTree(int size, size_t tensor_count);

  /// True if one group is left.
  bool done() const { return group_ == size_; }
  /// The number of ranks in a group, and the number of pairs of groups.
  int group() const { return group_; }
  int pairs() const { return size_ / group_ / 2; }
  /// The weights of a tensor, by rank.
  const double* weights(size_t tensor) const { return &weights_[tensor * Size()]; }

  /// Computes the weights of the next level. `products` is ordered by block, then by pair.
  void Combine(const std::vector<TensorBlock>& blocks, const std::vector<Products>& products);
  /// Multiplies all weights by `factor`.
  void Scale(double factor);

 private:
  size_t Size() const { return static_cast<size_t>(size_); }

  int size_, group_ = 1;
  std::vector<double> weights_;  // by tensor and rank
};

}  // namespace dtrun::ops

#endif  // DTRUN_OPS_COMMUNICATOR_ADASUM_H_
