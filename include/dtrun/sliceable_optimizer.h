#ifndef DTRUN_SLICEABLE_OPTIMIZER_H_
#define DTRUN_SLICEABLE_OPTIMIZER_H_

#include <dtrun/detail/block_device.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/types.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtrun {

/// The elements [first, first + count) of one parameter, to be updated. The pointers point to the
/// first of these elements. Their type is the parameter's dtype or, for state, the slot's dtype.
/// They lie where the parameter lies. On a GPU, the update is enqueued into the stream of the
/// value.
struct ParameterSlice {
  size_t parameter = 0;            ///< index in parameters()
  uint64_t first = 0,              ///< index of the first element in the parameter
      count = 0;                   ///< number of elements
  const void* gradient = nullptr;  ///< the reduced gradient
  void* value = nullptr;           ///< the values, to be updated in place
  void* const* slots = nullptr;    ///< by slot, in the order of slots()
};

/// State that the optimizer keeps for each element, for example the momentum. Initially 0.
struct StateSlot {
  std::string name;                           ///< for example "momentum"
  std::optional<DType> dtype = std::nullopt;  ///< nullopt: the parameter's
};

/// The Euclidean norms of one parameter.
struct ParameterNorms {
  double gradient = 0;  ///< of the gradient as the update sees it; 0 without a gradient
  double value = 0;     ///< of the values before the update
};

/// SGD with momentum in one formula. See dtrun_momentum_step in c.h for the factors of Keras's,
/// classic and Nesterov's momentum.
///
///   g     = gradient + decay * value
///   m     = keep * m + take * g
///   value = value + by_momentum * m + by_gradient * g
struct MomentumRule {
  double keep = 0,      ///< factor of the last m
      take = 1,         ///< factor of g in m
      decay = 0,        ///< factor of the value in g
      by_momentum = 0,  ///< factor of m in the change of the value
      by_gradient = 0;  ///< factor of g in the change of the value
};

/// An optimizer that updates each element from its own gradient, value and state. Therefore the
/// update can be cut anywhere: a ShardedOptimizer lets each rank update a share, and keep the state
/// of that share only. Without a ShardedOptimizer, it is an ordinary optimizer. `Step()` and
/// `state()` are implemented here, with the functions about slices.
///
///   SGD with momentum:  slots() {"momentum"}; StepSlice: m = mu * m + g; value = value - rate * m
///
/// `BeginStep()` prepares the values that are the same for all elements in a step, for example the
/// count of steps. `scalars()` keeps them. An optimizer that needs norms of whole parameters (LARS,
/// LAMB) overrides `needs_norms()`, and gets the norms before each step.
class SliceableOptimizer : public virtual Optimizer {
 public:
  /// False: the functions about slices cannot be used, because this object wraps an optimizer that
  /// is not sliceable.
  virtual bool can_slice() const { return true; }
  /// The state of each element. The same for the life of the optimizer.
  virtual std::vector<StateSlot> slots() const = 0;
  /// State that does not belong to an element. The views are valid as long as the optimizer.
  virtual std::vector<NamedBuffer> scalars() { return {}; }
  /// True: the optimizer needs the norms of its parameters. The parameters are then f32 or f64,
  /// otherwise a step throws kInvalidArgument.
  virtual bool needs_norms() const { return false; }
  /// Passes the norms, by parameter. Called before BeginStep() if `needs_norms()`.
  virtual void SetNorms(const std::vector<ParameterNorms>& norms) { static_cast<void>(norms); }
  /// Called on every rank, once in a step, before the first slice.
  virtual void BeginStep() {}
  /// Updates the values and the state of a slice. Slices come in any order, each element once in a
  /// step.
  virtual void StepSlice(const ParameterSlice& slice) = 0;

  /// The formula of StepSlice in this step. nullopt: StepSlice computes something else. Called
  /// after BeginStep(). The parameters are f32. There is no slot, or m is the only slot and is f32.
  /// With a formula, a ShardedOptimizer in host memory computes the update itself while it reduces,
  /// which is faster, and does not call StepSlice. The two results may differ by rounding.
  virtual std::optional<MomentumRule> momentum_rule() const { return std::nullopt; }

  /// The whole state, slot by slot, with names "<slot>/<parameter>"; then the scalars.
  std::vector<NamedBuffer> state() override {
    AllocateSlots();
    std::vector<NamedBuffer> all;
    const std::vector<StateSlot> list = slots();
    for (size_t s = 0; s < list.size(); ++s)
      for (size_t i = 0; i < parameters().size(); ++i)
        all.push_back({StateName(list[s], parameters()[i]), slots_[i][s]});
    for (const NamedBuffer& scalar : scalars()) all.push_back(scalar);
    return all;
  }

  /// Updates the parameters that have a gradient. Other parameters are not changed.
  void Step() override {
    AllocateSlots();
    if (needs_norms()) SetNorms(LocalNorms());
    BeginStep();
    for (size_t i = 0; i < parameters().size(); ++i) {
      const Parameter& parameter = parameters()[i];
      if (parameter.value.count == 0 || !HasGradient(parameter)) continue;
      StepSlice(
          {i, 0, parameter.value.count, parameter.gradient.data, parameter.value.data,
           slot_data_[i].data()});
    }
  }

  /// The name of the state of one slot and parameter: "<slot>/<parameter>".
  static std::string StateName(const StateSlot& slot, const Parameter& parameter) {
    return slot.name + "/" + parameter.name;
  }
  /// The type of the state of one slot and parameter: the slot's dtype or, without one, the
  /// parameter's.
  static DType SlotDType(const StateSlot& slot, const Parameter& parameter) {
    return slot.dtype.value_or(parameter.value.dtype);
  }

 protected:
  /// Returns zeroed memory for one slot of a parameter, as many elements as the parameter. The
  /// memory lives as long as this object. The default is host memory; override it if the optimizer
  /// updates parameters on a GPU.
  virtual Buffer AllocateState(const Parameter& parameter, DType dtype) {
    const uint64_t bytes = parameter.value.count * SizeOf(dtype);
    memory_.emplace_back((bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t));
    return Buffer(memory_.back().data(), parameter.value.count, dtype);
  }

 private:
  // Only an optimizer that is not sharded needs the whole state.
  void AllocateSlots() {
    if (!slots_.empty()) return;
    const std::vector<StateSlot> list = slots();
    for (const Parameter& parameter : parameters()) {
      std::vector<Buffer> buffers;
      std::vector<void*> data;
      for (const StateSlot& slot : list) {
        buffers.push_back(AllocateState(parameter, SlotDType(slot, parameter)));
        data.push_back(buffers.back().data);
      }
      slots_.push_back(std::move(buffers));
      slot_data_.push_back(std::move(data));
    }
  }

  static bool HasGradient(const Parameter& parameter) {
    return parameter.has_gradient && parameter.gradient.data != nullptr;
  }

  static void CheckFloat(const Parameter& parameter, const std::string& what, DType dtype) {
    if (dtype == DType::kF32 || dtype == DType::kF64) return;
    throw Error(
        ErrorCode::kInvalidArgument, "the optimizer needs norms: the " + what + " of parameter '" +
                                         parameter.name + "' is " + NameOf(dtype) +
                                         "; expected f32 or f64");
  }

  std::vector<ParameterNorms> LocalNorms() {
    std::vector<Buffer> buffers;
    for (const Parameter& parameter : parameters()) {
      CheckFloat(parameter, "value", parameter.value.dtype);
      buffers.push_back(parameter.value);
      if (!HasGradient(parameter)) continue;
      CheckFloat(parameter, "gradient", parameter.gradient.dtype);
      buffers.push_back(parameter.gradient);
    }
    const std::vector<double> squares = detail::SquaredNorms(buffers);
    std::vector<ParameterNorms> norms;
    size_t next = 0;
    for (const Parameter& parameter : parameters()) {
      ParameterNorms of;
      of.value = std::sqrt(squares[next++]);
      if (HasGradient(parameter)) of.gradient = std::sqrt(squares[next++]);
      norms.push_back(of);
    }
    return norms;
  }

  std::vector<std::vector<uint64_t>> memory_;
  std::vector<std::vector<Buffer>> slots_;     // by parameter and slot
  std::vector<std::vector<void*>> slot_data_;  // their addresses
};

/// Returns the optimizer as a SliceableOptimizer. Null if its update cannot be cut into slices.
inline SliceableOptimizer* AsSliceable(Optimizer& optimizer) {
  auto* const sliceable = dynamic_cast<SliceableOptimizer*>(&optimizer);
  return sliceable != nullptr && sliceable->can_slice() ? sliceable : nullptr;
}

}  // namespace dtrun

#endif
