#ifndef DTRUN_OPTIMIZER_H_
#define DTRUN_OPTIMIZER_H_

#include <dtrun/types.h>

#include <string>
#include <vector>

namespace dtrun {

/// One trained tensor. Both views have the same count.
struct Parameter {
  std::string name;
  Buffer value;
  /// Where the backward pass writes and the optimizer reads. With null data a DistributedOptimizer
  /// points it into memory that is reduced without a copy.
  Buffer gradient;
};

/// A named piece of a model's or an optimizer's state, such as Adam's first moments.
struct NamedBuffer {
  std::string name;
  Buffer buffer;
};

/// What updates parameters from gradients. Derive from it to hand your own optimizer to
/// DistributedOptimizer. Not thread-safe.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// The parameters it updates, first layer first; the same vector for the optimizer's whole life.
  virtual std::vector<Parameter>& parameters() = 0;
  /// Everything besides the parameters that the next update depends on. Views stay valid as long as
  /// the optimizer.
  virtual std::vector<NamedBuffer> state() = 0;
  /// Updates every parameter from its gradient.
  virtual void Step() = 0;
};

}  // namespace dtrun

#endif
