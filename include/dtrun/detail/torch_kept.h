#ifndef DTRUN_DETAIL_TORCH_KEPT_H_
#define DTRUN_DETAIL_TORCH_KEPT_H_

#include <dtrun/detail/sharded_state.h>
#include <dtrun/detail/torch_sharded.h>
#include <dtrun/detail/torch_tensors.h>
#include <dtrun/elastic.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

// The state of LibTorch's optimizers as columns of numbers, for the copies of Elastic. Internal.
//
// LibTorch has a class of state for each optimizer, with a step count and some tensors of the
// parameter's shape. A state appears at the first step with a gradient, and some of its tensors
// with the first use of an option.

namespace dtrun {
namespace torch {
namespace internal {

/// How the state of an optimizer is taken apart and put together.
struct StateKind {
  size_t tensors = 0;  ///< of a parameter at most, with the options of the optimizer
  std::function<std::unique_ptr<::torch::optim::OptimizerParamState>()> make;
  /// The step count; null: the optimizer has none.
  std::function<int64_t*(::torch::optim::OptimizerParamState&)> step_of;
  /// All tensors of the class. An undefined tensor is not there yet.
  std::function<std::vector<Tensor*>(::torch::optim::OptimizerParamState&)> tensors_of;
};

template <typename State, typename = void>
struct HasStep : std::false_type {};
template <typename State>
struct HasStep<State, std::void_t<decltype(std::declval<State&>().step())>> : std::true_type {};

/// The kind with the state class `State`, whose tensors are `kTensors`. `most` returns the number
/// of them that the options of a group use.
template <typename State, typename Options, Tensor& (State::*... kTensors)()>
StateKind KindWith(const ::torch::optim::Optimizer& optimizer, size_t (*most)(const Options&)) {
  StateKind kind;
  for (const auto& group : optimizer.param_groups())
    kind.tensors = std::max(kind.tensors, most(static_cast<const Options&>(group.options())));
  kind.make = [] { return std::make_unique<State>(); };
  kind.step_of = [](::torch::optim::OptimizerParamState& state) -> int64_t* {
    if constexpr (HasStep<State>::value)
      return &static_cast<State&>(state).step();
    else
      return nullptr;
  };
  kind.tensors_of = [](::torch::optim::OptimizerParamState& state) {
    return std::vector<Tensor*>{&(static_cast<State&>(state).*kTensors)()...};
  };
  return kind;
}

/// Of Adam and AdamW.
template <typename State, typename Options>
StateKind KindOfAdam(const ::torch::optim::Optimizer& optimizer) {
  return KindWith<State, Options, &State::exp_avg, &State::exp_avg_sq, &State::max_exp_avg_sq>(
      optimizer, [](const Options& of) -> size_t { return of.amsgrad() ? 3 : 2; });
}

inline StateKind KindOfSgd(const ::torch::optim::Optimizer& optimizer) {
  using Options = ::torch::optim::SGDOptions;
  using State = ::torch::optim::SGDParamState;
  return KindWith<State, Options, &State::momentum_buffer>(
      optimizer, [](const Options& of) -> size_t { return of.momentum() != 0 ? 1 : 0; });
}

inline StateKind KindOfRmsprop(const ::torch::optim::Optimizer& optimizer) {
  using Options = ::torch::optim::RMSpropOptions;
  using State = ::torch::optim::RMSpropParamState;
  return KindWith<State, Options, &State::square_avg, &State::momentum_buffer, &State::grad_avg>(
      optimizer, [](const Options& of) -> size_t {
        if (of.centered()) return 3;
        return of.momentum() > 0 ? 2 : 1;
      });
}

inline StateKind KindOfAdagrad(const ::torch::optim::Optimizer& optimizer) {
  using Options = ::torch::optim::AdagradOptions;
  using State = ::torch::optim::AdagradParamState;
  return KindWith<State, Options, &State::sum>(
      optimizer, [](const Options&) -> size_t { return 1; });
}

/// kInvalidArgument for optimizers that are not LibTorch's own, and for LBFGS.
inline StateKind KindOf(const ::torch::optim::Optimizer& optimizer) {
  namespace optim = ::torch::optim;
  if (dynamic_cast<const optim::Adam*>(&optimizer) != nullptr)
    return KindOfAdam<optim::AdamParamState, optim::AdamOptions>(optimizer);
  if (dynamic_cast<const optim::AdamW*>(&optimizer) != nullptr)
    return KindOfAdam<optim::AdamWParamState, optim::AdamWOptions>(optimizer);
  if (dynamic_cast<const optim::SGD*>(&optimizer) != nullptr) return KindOfSgd(optimizer);
  if (dynamic_cast<const optim::RMSprop*>(&optimizer) != nullptr) return KindOfRmsprop(optimizer);
  if (dynamic_cast<const optim::Adagrad*>(&optimizer) != nullptr) return KindOfAdagrad(optimizer);
  Refuse(
      ErrorCode::kInvalidArgument,
      "Keep: found a ShardedOptimizer of a class that dtrun does not know; expected Adam, AdamW, "
      "SGD, RMSprop or Adagrad");
}

/// The parameters of a ShardedOptimizer, their state, and the buffers of the module. Each parameter
/// has two items: its value and the tensors of its state, and its step count.
class ShardedTensors : public dtrun::detail::ShardedState {
 public:
  ShardedTensors(::torch::nn::Module& module, ShardedOptimizer& optimizer)
      : module_(module), optimizer_(optimizer), kind_(KindOf(optimizer.inner())) {
    const auto& groups = optimizer.param_groups();
    for (size_t g = 0; g < groups.size(); ++g)
      for (size_t k = 0; k < groups[g].params().size(); ++k)
        slots_.push_back(
            {groups[g].params()[k],
             optimizer.owners_[g][k] == optimizer.communicator_.rank(),
             {},
             0});
  }

  std::vector<uint64_t> counts() const override {
    std::vector<uint64_t> counts;
    for (const Slot& slot : slots_)
      counts.insert(counts.end(), {static_cast<uint64_t>(slot.parameter.numel()), 1});
    return counts;
  }
  std::vector<DType> TypesOf(size_t item) const override {
    if (item % 2 == 1) return {DType::kI64, DType::kI64};
    const Tensor& parameter = slots_[item / 2].parameter;
    return std::vector<DType>(1 + kind_.tensors, CheckedDType("Keep: a parameter", parameter));
  }
  void ForOwn(const Visit& visit) override {
    for (size_t p = 0; p < slots_.size(); ++p) {
      if (!slots_[p].is_own) continue;
      const Tensor& parameter = slots_[p].parameter;
      int64_t step = 0, found = kNoState;
      std::vector<Tensor> columns = {parameter};
      std::vector<Tensor> state;
      if (auto* const stored = StateOf(parameter)) {
        found = 0;
        if (const int64_t* const count = kind_.step_of(*stored)) step = *count;
        for (const Tensor* const tensor : kind_.tensors_of(*stored)) state.push_back(*tensor);
      }
      state.resize(kind_.tensors);
      for (size_t k = 0; k < state.size(); ++k) {
        if (state[k].defined()) found |= int64_t{1} << k;
        columns.push_back(state[k].defined() ? state[k] : at::zeros_like(parameter));
      }
      Visited(2 * p, columns, visit);
      visit({2 * p + 1, 0, 1}, {Buffer(&step, 1), Buffer(&found, 1)});
    }
  }
  void Take(size_t item, size_t column, const Buffer& whole, bool) override {
    Slot& slot = slots_[item / 2];
    if (item % 2 == 0) {
      ::torch::NoGradGuard no_grad;
      const Tensor values = at::from_blob(
          whole.data, slot.parameter.sizes(), slot.parameter.options().device(at::kCPU));
      if (column == 0)
        Tensor(slot.parameter).copy_(values);
      else if (slot.is_own)
        slot.taken.push_back(at::empty_like(slot.parameter).copy_(values));
      return;
    }
    const int64_t number = *static_cast<const int64_t*>(whole.data);
    if (column == 0)
      slot.step = number;
    else if (slot.is_own)
      PutState(slot, number);
  }
  std::string Equal() override {
    ::torch::serialize::OutputArchive archive;
    const std::vector<Tensor> buffers = module_.buffers();
    for (size_t i = 0; i < buffers.size(); ++i)
      if (buffers[i].defined()) archive.write("buffer" + std::to_string(i), buffers[i], true);
    for (size_t g = 0; g < optimizer_.param_groups().size(); ++g) {
      ::torch::serialize::OutputArchive group;
      optimizer_.param_groups()[g].options().serialize(group);
      archive.write("group" + std::to_string(g), group);
    }
    std::ostringstream stream;
    archive.save_to(stream);
    return stream.str();
  }
  void TakeEqual(const std::string& bytes) override {
    ::torch::NoGradGuard no_grad;
    ::torch::serialize::InputArchive archive;
    archive.load_from(bytes.data(), bytes.size());
    std::vector<Tensor> buffers = module_.buffers();
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (!buffers[i].defined()) continue;
      Tensor kept;
      archive.read("buffer" + std::to_string(i), kept, true);
      buffers[i].copy_(kept);
    }
    for (size_t g = 0; g < optimizer_.param_groups().size(); ++g) {
      ::torch::serialize::InputArchive group;
      archive.read("group" + std::to_string(g), group);
      optimizer_.param_groups()[g].options().serialize(group);
    }
  }
  void BeforeStep(std::function<void()> call) override {
    optimizer_.before_step_ = std::move(call);
  }

 private:
  static constexpr int64_t kNoState = -1;

  struct Slot {
    Tensor parameter;
    bool is_own;
    std::vector<Tensor> taken;  // the state that Take has collected, and its step count
    int64_t step;
  };

  ::torch::optim::OptimizerParamState* StateOf(const Tensor& parameter) const {
    auto& states = optimizer_.inner().state();
    const auto found = states.find(ShardedOptimizer::KeyOf(states, parameter));
    return found == states.end() ? nullptr : found->second.get();
  }

  // Calls `visit` with all elements of the columns.
  static void Visited(size_t item, const std::vector<Tensor>& columns, const Visit& visit) {
    std::vector<Tensor> staged;  // until the visit is over
    std::vector<Buffer> buffers;
    const Lane lane(columns[0].device());
    for (const Tensor& column : columns) {
      if (column.scalar_type() != columns[0].scalar_type())
        Refuse(
            ErrorCode::kInvalidArgument, "Keep: the state of a parameter is ", column.scalar_type(),
            "; expected ", columns[0].scalar_type(), ", as the parameter");
      staged.push_back(column.detach().contiguous());
      buffers.push_back(
          lane.BufferOf(staged.back().data_ptr(), column.numel(), CheckedDType("Keep", column)));
    }
    lane.Enter();
    visit({item, 0, static_cast<uint64_t>(columns[0].numel())}, buffers);
  }

  void PutState(Slot& slot, int64_t found) {
    auto& states = optimizer_.inner().state();
    const auto key = ShardedOptimizer::KeyOf(states, slot.parameter);
    const std::vector<Tensor> taken = std::exchange(slot.taken, {});
    if (found == kNoState) {
      states.erase(key);
      return;
    }
    auto state = kind_.make();
    if (int64_t* const count = kind_.step_of(*state)) *count = slot.step;
    const std::vector<Tensor*> tensors = kind_.tensors_of(*state);
    for (size_t k = 0; k < taken.size(); ++k)
      if ((found & (int64_t{1} << k)) != 0) *tensors[k] = taken[k];
    states[key] = std::move(state);
  }

  ::torch::nn::Module& module_;
  ShardedOptimizer& optimizer_;
  StateKind kind_;
  std::vector<Slot> slots_;
};

}  // namespace internal

/// Keeps the parameters and the state of a ShardedOptimizer and the buffers of the module: see
/// Elastic::Keep(ShardedOptimizer&, uint64_t). Collective. Call it in the function of Run, after
/// the optimizers are made; the module and both optimizers outlive the loop. Parameters that the
/// optimizer does not have are not kept: all processes have them from the same file or seed.
/// kInvalidArgument: the inner optimizer is not Adam, AdamW, SGD, RMSprop or Adagrad.
///
///   elastic.Run([&](dtrun::Context& job) {
///     dtrun::torch::ShardedOptimizer adam(job.world(), groups, make);
///     dtrun::torch::DistributedOptimizer optimizer(job.world(), adam, *model);
///     dtrun::torch::Keep(elastic, *model, adam);
inline void Keep(
    Elastic& elastic, ::torch::nn::Module& module, ShardedOptimizer& optimizer,
    uint64_t every = 1) {
  elastic.Keep(std::make_unique<internal::ShardedTensors>(module, optimizer), every);
}

}  // namespace torch
}  // namespace dtrun

#endif  // DTRUN_DETAIL_TORCH_KEPT_H_
