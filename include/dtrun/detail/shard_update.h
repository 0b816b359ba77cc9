#ifndef DTRUN_DETAIL_SHARD_UPDATE_H_
#define DTRUN_DETAIL_SHARD_UPDATE_H_

#include <dtrun/detail/parameter_state.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/sliceable_optimizer.h>
#include <dtrun/types.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace dtrun {
namespace detail {

/// True if the update of a variable needs all of it.
inline bool NeedsWholeVariables(Optimizer& optimizer) {
  const SliceableOptimizer* const sliceable = AsSliceable(optimizer);
  return sliceable == nullptr || sliceable->needs_norms();
}

/// Steps the shards of one parameter server with an optimizer of all variables.
class ShardUpdate {
 public:
  virtual ~ShardUpdate() = default;
  /// Updates the shards. `gradients[i]` is the gradient of shard i.
  virtual void Step(const void* const* gradients) = 0;
  /// The optimizer's state of the shards, with the names of the shards, and the state that belongs
  /// to no variable.
  virtual std::vector<NamedBuffer> state() = 0;
  /// Gives the optimizer its parameters back, as they were. No step follows.
  virtual void Release() {}
};

/// The update in slices: only the shards have state.
class SlicedUpdate : public ShardUpdate {
 public:
  SlicedUpdate(SliceableOptimizer& optimizer, std::vector<ShardPlace> places)
      : optimizer_(optimizer), places_(std::move(places)), slots_(optimizer.slots()) {
    for (const ShardPlace& place : places_) {
      std::vector<void*> data;
      for (const StateSlot& slot : slots_) {
        const DType dtype = SliceableOptimizer::SlotDType(slot, ParameterOf(place));
        const uint64_t bytes = place.count * SizeOf(dtype);
        memory_.emplace_back((bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t));
        data.push_back(memory_.back().data());
        state_.push_back({slot.name + "/" + place.shard, Buffer(data.back(), place.count, dtype)});
      }
      slot_data_.push_back(std::move(data));
    }
  }

  void Step(const void* const* gradients) override {
    optimizer_.BeginStep();
    for (size_t i = 0; i < places_.size(); ++i) {
      const ShardPlace& place = places_[i];
      if (place.count == 0 || !ParameterOf(place).requires_gradient) continue;
      optimizer_.StepSlice(
          {place.index, place.first, place.count, gradients[i], place.value.data,
           slot_data_[i].data()});
    }
  }
  std::vector<NamedBuffer> state() override {
    std::vector<NamedBuffer> all = state_;
    for (const NamedBuffer& scalar : optimizer_.scalars()) all.push_back(scalar);
    return all;
  }

 private:
  const Parameter& ParameterOf(const ShardPlace& place) const {
    return optimizer_.parameters()[place.index];
  }

  SliceableOptimizer& optimizer_;
  std::vector<ShardPlace> places_;
  std::vector<StateSlot> slots_;
  std::vector<std::vector<uint64_t>> memory_;
  std::vector<std::vector<void*>> slot_data_;  // by shard and slot
  std::vector<NamedBuffer> state_;
};

/// The update of whole variables, for optimizers that need all of a variable. The variables of
/// other servers have no gradient.
class WholeUpdate : public ShardUpdate {
 public:
  WholeUpdate(Optimizer& optimizer, std::vector<ShardPlace> places)
      : optimizer_(optimizer), places_(std::move(places)), before_(optimizer.parameters()) {
    uint64_t most = 0;
    for (Parameter& parameter : optimizer_.parameters()) {
      parameter.has_gradient = false;
      most = std::max(most, parameter.value.bytes());
    }
    zeros_.resize(most / sizeof(uint64_t) + 1);
    // For optimizers that do not read `has_gradient`.
    for (Parameter& parameter : optimizer_.parameters())
      parameter.gradient = Buffer(zeros_.data(), parameter.value.count, parameter.value.dtype);
    for (const ShardPlace& place : places_) {
      Parameter& parameter = optimizer_.parameters()[place.index];
      parameter.value = place.value;
      parameter.has_gradient = parameter.requires_gradient;
    }
  }
  ~WholeUpdate() override { WholeUpdate::Release(); }

  void Step(const void* const* gradients) override {
    for (size_t i = 0; i < places_.size(); ++i)
      optimizer_.parameters()[places_[i].index].gradient.data = const_cast<void*>(gradients[i]);
    optimizer_.Step();
  }
  std::vector<NamedBuffer> state() override {
    std::vector<NamedBuffer> own;
    for (const NamedBuffer& state : optimizer_.state())
      if (!IsElsewhere(state.name)) own.push_back(state);
    return own;
  }
  void Release() override {
    if (!std::exchange(released_, true)) optimizer_.parameters() = before_;
  }

 private:
  // True for the state of a variable that another server holds.
  bool IsElsewhere(const std::string& name) const {
    const Parameter* found = nullptr;  // the longest name that fits
    for (const Parameter& parameter : before_)
      if (EndsWith(name, "/" + parameter.name) &&
          (found == nullptr || found->name.size() < parameter.name.size()))
        found = &parameter;
    if (found == nullptr) return false;
    return std::none_of(places_.begin(), places_.end(), [&](const ShardPlace& place) {
      return place.variable == found->name;
    });
  }

  Optimizer& optimizer_;
  std::vector<ShardPlace> places_;
  std::vector<Parameter> before_;
  std::vector<uint64_t> zeros_;
  bool released_ = false;
};

/// Makes the update of a server's shards. `optimizer` outlives it. kInvalidArgument: the optimizer
/// needs whole variables, and a variable is cut.
inline std::unique_ptr<ShardUpdate> MakeShardUpdate(
    Optimizer& optimizer, std::vector<ShardPlace> places) {
  if (!NeedsWholeVariables(optimizer))
    return std::make_unique<SlicedUpdate>(*AsSliceable(optimizer), std::move(places));
  for (const ShardPlace& place : places)
    if (place.count < place.whole)
      throw Error(
          ErrorCode::kInvalidArgument,
          "variable '" + place.variable +
              "' is cut between parameter servers, and the optimizer needs it whole; use "
              "Partitioner::None()");
  return std::make_unique<WholeUpdate>(optimizer, std::move(places));
}

}  // namespace detail
}  // namespace dtrun

#endif
