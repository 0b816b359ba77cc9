#ifndef DTRUN_SLICEABLE_OPTIMIZER_H_
#define DTRUN_SLICEABLE_OPTIMIZER_H_

#include <dtrun/detail/gradient_checks.h>
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

/// Elements [first, first + count) of one parameter that are to be updated. The pointers point to
/// the first of them, as elements of the parameter's dtype (of state: of the slot's).
struct ParameterSlice {
  size_t parameter = 0;  ///< index in parameters()
  uint64_t first = 0, count = 0;
  const void* gradient = nullptr;
  void* value = nullptr;
  void* const* slots = nullptr;  ///< by slot, in the order of slots()
};

/// A number that the optimizer keeps for each element, such as the momentum. 0 at first.
struct StateSlot {
  std::string name;
  std::optional<DType> dtype = std::nullopt;  ///< none: the parameter's
};

/// Euclidean norms of one parameter: of its gradient as the update sees it (0 where it has none),
/// and of its values before the update.
struct ParameterNorms {
  double gradient = 0;
  double value = 0;
};

/// SGD with momentum in one formula; see dtrun_momentum_step of c.h, which has it for Keras's way,
/// the classic one and Nesterov's:
///
///   g     = gradient + decay * value
///   m     = keep * m + take * g
///   value = value + by_momentum * m + by_gradient * g
struct MomentumRule {
  double keep = 0, take = 1, decay = 0, by_momentum = 0, by_gradient = 0;
};

/// An optimizer that updates each element from its own gradient, value and state alone, so that the
/// work can be cut anywhere: a ShardedOptimizer lets each rank update a share, and keeps the state
/// of that share only. Used without one it is an optimizer like any other: `Step()` and `state()`
/// are made of what it says about slices.
///
///   SGD with momentum:  slots() {"momentum"}; StepSlice: m = mu * m + g; value = value - rate * m
///
/// What is the same for all elements in a step, such as the count of steps, is prepared in
/// `BeginStep()` and kept in `scalars()`. An optimizer that needs norms of whole parameters (LARS,
/// LAMB) says so, and gets them before each step.
class SliceableOptimizer : public virtual Optimizer {
 public:
  /// The same for the optimizer's whole life.
  virtual std::vector<StateSlot> slots() const = 0;
  /// State that belongs to no element: views that stay valid as long as the optimizer.
  virtual std::vector<NamedBuffer> scalars() { return {}; }
  /// Its parameters are then f32 or f64, else a step is kInvalidArgument.
  virtual bool needs_norms() const { return false; }
  /// By parameter, before BeginStep(), if it needs them.
  virtual void SetNorms(const std::vector<ParameterNorms>& norms) { static_cast<void>(norms); }
  /// Once in a step, before its first slice, on every rank.
  virtual void BeginStep() {}
  /// Updates the values and the state of a slice. Slices come in any order, each element once in a
  /// step.
  virtual void StepSlice(const ParameterSlice& slice) = 0;

  /// In this step, after BeginStep(): the formula that StepSlice computes, on f32 parameters, with
  /// m as the only slot, f32 as well, or without a slot. A ShardedOptimizer then computes it itself
  /// while it reduces, which saves time, and does not call StepSlice; the two may differ by
  /// rounding. None: StepSlice computes something else.
  virtual std::optional<MomentumRule> momentum_rule() const { return std::nullopt; }

  /// "<slot>/<parameter>", the whole of it, slot by slot; then the scalars.
  std::vector<NamedBuffer> state() override {
    AllocateSlots();
    std::vector<NamedBuffer> all;
    const std::vector<StateSlot> list = slots();
    for (size_t s = 0; s < list.size(); ++s)
      for (size_t i = 0; i < parameters().size(); ++i)
        all.push_back(
            {StateName(list[s], parameters()[i]), Buffer(
                                                      slot_data_[i][s], parameters()[i].value.count,
                                                      SlotDType(list[s], parameters()[i]))});
    for (const NamedBuffer& scalar : scalars()) all.push_back(scalar);
    return all;
  }

  /// Parameters that have no gradient are left as they are.
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

  static std::string StateName(const StateSlot& slot, const Parameter& parameter) {
    return slot.name + "/" + parameter.name;
  }
  static DType SlotDType(const StateSlot& slot, const Parameter& parameter) {
    return slot.dtype.value_or(parameter.value.dtype);
  }

 private:
  // Only an optimizer that is not sharded needs the whole of it.
  void AllocateSlots() {
    if (!slot_data_.empty()) return;
    const std::vector<StateSlot> list = slots();
    for (const Parameter& parameter : parameters()) {
      std::vector<void*> data;
      for (const StateSlot& slot : list) {
        const uint64_t bytes = parameter.value.count * SizeOf(SlotDType(slot, parameter));
        memory_.emplace_back((bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t));
        data.push_back(memory_.back().data());
      }
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
    std::vector<ParameterNorms> norms;
    for (const Parameter& parameter : parameters()) {
      CheckFloat(parameter, "value", parameter.value.dtype);
      double gradient = 0;
      if (HasGradient(parameter)) {
        CheckFloat(parameter, "gradient", parameter.gradient.dtype);
        gradient = std::sqrt(detail::SquaredNorm(parameter.gradient));
      }
      norms.push_back({gradient, std::sqrt(detail::SquaredNorm(parameter.value))});
    }
    return norms;
  }

  std::vector<std::vector<uint64_t>> memory_;
  std::vector<std::vector<void*>> slot_data_;  // by parameter and slot
};

}  // namespace dtrun

#endif
