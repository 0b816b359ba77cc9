#ifndef DTRUN_OPS_ADASUM_H_
#define DTRUN_OPS_ADASUM_H_

#include <cstdint>
#include <memory>

#include "dtrun/types.h"
#include "ops/communicator.h"
#include "ops/engine.h"

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

}  // namespace dtrun::ops

#endif
