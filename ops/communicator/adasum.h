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

/// Whether so many ranks can take part: a power of two.
bool AdasumTakes(int size);
/// Whether tensors may be of it: f16, bf16, f32 and f64.
bool AdasumTakes(DType dtype);

/// Adaptive summation over the ranks of a communicator (S. Maleki et al., "Scaling Distributed
/// Training with Adaptive Summation", 2020): what is common to the tensors of two ranks is
/// averaged, what is orthogonal added,
///
///   a (1 - a.b / (2 a.a)) + b (1 - a.b / (2 b.b))      a factor is 1 where a.a (b.b) is 0
///
/// and more ranks are combined in pairs, these in pairs again, in rank order. Each tensor of a
/// buffer is combined by itself. See adasum.cc for how. The bits are the same on all ranks and do
/// not depend on the backend, on where the buffers lie, or on the other tensors. A NaN or an
/// infinity in the tensor of a rank makes the whole tensor NaN on all ranks, as does a product of
/// two ranks that overflows f64. Started operations may outlive it; otherwise as its communicator.
class Adasum {
 public:
  /// Collective; takes a duplicate. Both outlive it.
  Adasum(Communicator& communicator, Engine& engine);
  ~Adasum();

  /// Every rank's `output` becomes the combination of the inputs, which may be the same memory, of
  /// tensors of these counts, one after the other: the same on all ranks. The result is multiplied
  /// by both factors of the scale. Where the buffers lie in memory that the communicator has
  /// allocated, they are not copied. In the order of the communicator's operations. Throws Error
  /// kInvalidArgument: the number of ranks or the type is none that AdasumTakes, or the counts do
  /// not add up.
  Work Start(Buffer input, Buffer output, Counts tensors, Scale scale = {});

  struct Group;

 private:
  Communicator& communicator_;
  Engine& engine_;
  std::shared_ptr<Group> group_;
};

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

#endif  // DTRUN_OPS_COMMUNICATOR_ADASUM_H_
