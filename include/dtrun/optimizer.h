#ifndef DTRUN_OPTIMIZER_H_
#define DTRUN_OPTIMIZER_H_

#include <dtrun/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace dtrun {

/// Some rows of a gradient; the others are zero.
struct RowGradient {
  const int64_t* rows = nullptr;  ///< ascending, each once
  uint64_t count = 0;             ///< rows
  Buffer values;                  ///< (count, row_length)
};

/// One trained tensor. Value and gradient have the same count.
struct Parameter {
  std::string name;
  Buffer value;
  /// Where the backward pass writes and the optimizer reads. With null data a DistributedOptimizer
  /// points it into memory that is reduced without a copy.
  Buffer gradient;
  /// Elements of a row, of a parameter whose gradient is given by rows (an embedding); 0: it has
  /// none. Set before the optimizer is wrapped; f32 or f64.
  uint64_t row_length = 0;
  /// False: frozen. Read when the optimizer is wrapped and at the start of every step.
  bool requires_gradient = true;

  /// What a DistributedOptimizer says before each Step() of the optimizer that it wraps. False: the
  /// parameter is left as it is, and so is its state, since no rank has used it, it is frozen, or
  /// another parameter that is tied to it has the gradient of both.
  bool has_gradient = true;
  /// The gradient, where the optimizer takes rows; `gradient` then has no data. Valid until the
  /// next step.
  RowGradient rows = {};
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
  /// Updates every parameter that has a gradient from it.
  virtual void Step() = 0;
  /// Whether Step() updates a parameter that has a `row_length` from its `rows`, touching no other
  /// row. Otherwise it finds the rows in `gradient`, and zeros in the others.
  virtual bool TakesRows() const { return false; }
};

}  // namespace dtrun

#endif
