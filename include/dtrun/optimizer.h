#ifndef DTRUN_OPTIMIZER_H_
#define DTRUN_OPTIMIZER_H_

#include <dtrun/communicator.h>
#include <dtrun/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace dtrun {

class Communicator;

/// Some rows of a gradient. All other rows are zero.
struct RowGradient {
  const int64_t* rows = nullptr;  ///< ascending, unique
  uint64_t count = 0;             ///< number of rows
  Buffer values;                  ///< shape (count, row_length)
};

/// A trained tensor. Its value and its gradient have the same count.
struct Parameter {
  std::string name;  ///< unique in an optimizer; the same on all ranks
  Buffer value;      ///< the values, which `Step()` updates
  /// The backward pass writes the gradient here, and the optimizer reads it. If the data is null, a
  /// DistributedOptimizer points it into memory that is reduced without a copy.
  Buffer gradient;
  /// The elements of a row, for a parameter with a gradient by rows (an embedding). 0: no rows. Set
  /// it before the optimizer is wrapped. Such a parameter is f32 or f64.
  uint64_t row_length = 0;
  /// False: frozen. Read when the optimizer is wrapped and at the start of every step.
  bool requires_gradient = true;

  /// Set by a DistributedOptimizer before each Step() of the inner optimizer. If false, do not
  /// change the parameter or its state: no rank has used the parameter, it is frozen, or another
  /// parameter that is tied to it holds the gradient.
  bool has_gradient = true;
  /// The gradient by rows, if the optimizer takes rows. Then `gradient` has no data. Valid until
  /// the next step.
  RowGradient rows = {};
};

/// A named piece of a model's or an optimizer's state, for example Adam's first moments.
struct NamedBuffer {
  std::string name;  ///< unique in a list, for example "momentum/weight"
  Buffer buffer;     ///< the values, in memory of the model or the optimizer
};

/// An optimizer: updates parameters from gradients. To pass your own optimizer to
/// DistributedOptimizer, derive from this class. Not thread-safe.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// The parameters that it updates, first layer first. The vector stays the same for the life of
  /// the optimizer.
  virtual std::vector<Parameter>& parameters() = 0;
  /// The state, besides the parameters, that the next update depends on. The views are valid as
  /// long as the optimizer.
  virtual std::vector<NamedBuffer> state() = 0;
  /// Updates every parameter that has a gradient.
  virtual void Step() = 0;
  /// True if Step() updates a parameter with a `row_length` from its `rows`, and changes only these
  /// rows. If false, Step() reads the whole `gradient`, in which all other rows are zero.
  virtual bool TakesRows() const { return false; }
  /// The factor by which the trainer has multiplied the loss, and so all gradients. See
  /// LossScaleOptimizer.
  virtual double loss_scale() const { return 1; }
  /// True: Step() accepts gradients that are infinite or NaN, and then changes no parameter.
  virtual bool TakesOverflow() const { return false; }
  /// True: Step() is collective.
  virtual bool StepsTogether() const { return false; }
  /// The numbers that the trainer may change between steps, for example the learning rate. With
  /// parameter servers, the servers apply each gradient with the numbers of its worker.
  virtual std::vector<double> step_settings() const { return {}; }
  /// Sets the numbers for the next step: as many as step_settings() returns.
  virtual void set_step_settings(const std::vector<double>& settings) {
    static_cast<void>(settings);
  }
  /// Settings that are the same on all ranks, as text. Wrappers compare them.
  virtual std::string SharedSettings() const { return ""; }
  /// Called by wrappers on all ranks before Step(), if the ranks step with different gradients:
  /// with kAdasum, with local parameters and under NoSync(). An optimizer that must take or skip a
  /// step on all ranks decides here, together with the other ranks. `has_gradients`: false on a
  /// rank that has no more data and does not step. Collective.
  virtual void Agree(Communicator& ranks, bool has_gradients) {
    static_cast<void>(ranks);
    static_cast<void>(has_gradients);
  }
};

// ---- The same state on all ranks ---------------------------------------------------------------

namespace detail {

// At most two broadcasts are under way: while one moves its data, the ranks meet in the next one.
// So a network of many parameters takes two rows of a timeline, not one row per parameter.
inline void BroadcastInTurn(
    Communicator& communicator, const std::vector<Buffer>& buffers, int root) {
  std::vector<Work> works;
  for (const Buffer& buffer : buffers) {
    works.push_back(communicator.StartBroadcast(buffer, root));
    if (works.size() > 1) works[works.size() - 2].Wait();
  }
  if (!works.empty()) works.back().Wait();
}

}  // namespace detail

/// Makes the parameters of all ranks equal to those of rank `root`. Collective.
inline void BroadcastParameters(
    Communicator& communicator, const std::vector<Parameter>& parameters, int root = 0) {
  std::vector<Buffer> values;
  for (const Parameter& parameter : parameters) values.push_back(parameter.value);
  detail::BroadcastInTurn(communicator, values, root);
}

/// Makes named buffers of all ranks equal to those of rank `root`, for state of a model besides its
/// parameters, for example running statistics. Collective.
inline void BroadcastBuffers(
    Communicator& communicator, const std::vector<NamedBuffer>& buffers, int root = 0) {
  std::vector<Buffer> values;
  for (const NamedBuffer& buffer : buffers) values.push_back(buffer.buffer);
  detail::BroadcastInTurn(communicator, values, root);
}

/// Broadcasts parameters and buffers. Collective.
inline void BroadcastParameters(
    Communicator& communicator, const std::vector<Parameter>& parameters,
    const std::vector<NamedBuffer>& buffers, int root = 0) {
  BroadcastParameters(communicator, parameters, root);
  BroadcastBuffers(communicator, buffers, root);
}

/// Makes the optimizer's state (moments, step counts) of all ranks equal to that of rank `root`.
/// Collective.
inline void BroadcastOptimizerState(
    Communicator& communicator, Optimizer& optimizer, int root = 0) {
  BroadcastBuffers(communicator, optimizer.state(), root);
}

}  // namespace dtrun

#endif
