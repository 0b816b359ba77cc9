#ifndef DTRUN_DETAIL_TORCH_GRADIENTS_H_
#define DTRUN_DETAIL_TORCH_GRADIENTS_H_

#include <dtrun/detail/torch_hooks.h>
#include <dtrun/detail/torch_memory.h>
#include <dtrun/detail/torch_tensors.h>
#include <dtrun/gradient_reducer.h>
#include <torch/csrc/autograd/engine.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace dtrun {
namespace torch {
namespace internal {

/// The parameters whose gradients are sparse: the weights of embeddings with the option `sparse`.
inline std::set<const at::TensorImpl*> SparseOf(const ::torch::nn::Module& module) {
  std::set<const at::TensorImpl*> sparse;
  const auto look = [&](const ::torch::nn::Module& part) {
    const auto* embedding = dynamic_cast<const ::torch::nn::EmbeddingImpl*>(&part);
    const auto* bag = dynamic_cast<const ::torch::nn::EmbeddingBagImpl*>(&part);
    if (embedding != nullptr && embedding->options.sparse())
      sparse.insert(embedding->weight.unsafeGetTensorImpl());
    if (bag != nullptr && bag->options.sparse()) sparse.insert(bag->weight.unsafeGetTensorImpl());
  };
  look(module);
  for (const auto& item : module.named_modules(std::string(), /*include_self=*/false))
    look(*item.value());
  return sparse;
}

/// Replaces the sparse gradient of `parameter` by the sum over the ranks, divided by `divisor`.
/// Rows of one index add up in rank order. An undefined gradient has no rows; if no rank has rows,
/// the gradient becomes undefined. Collective.
inline void ReduceRows(
    Communicator& communicator, const std::string& name, const Tensor& parameter, double divisor) {
  ::torch::NoGradGuard no_grad;
  Tensor& gradient = parameter.mutable_grad();
  const auto options = parameter.options().requires_grad(false);
  std::vector<int64_t> sizes = parameter.sizes().vec();
  const int64_t row = c10::multiply_integers(parameter.sizes().slice(1));
  sizes[0] = 0;
  Tensor indices = ::torch::empty({0}, options.dtype(at::kLong));
  Tensor values = ::torch::empty(sizes, options);
  if (gradient.defined()) {
    const Tensor mine = gradient.coalesce();
    indices = mine.indices()[0].contiguous();
    values = mine.values().contiguous();
  }
  const Counts counts = communicator.AllGatherCounts(static_cast<uint64_t>(indices.numel()));
  Counts elements;
  int64_t rows = 0;
  for (const uint64_t count : counts) {
    elements.push_back(count * static_cast<uint64_t>(row));
    rows += static_cast<int64_t>(count);
  }
  if (rows == 0) return gradient.reset();
  sizes[0] = rows;
  const Tensor all_indices = ::torch::empty({rows}, indices.options());
  const Tensor all_values = ::torch::empty(sizes, options);
  const Staged from_indices(name, indices), from_values(name, values);
  const Lane& lane = from_values.lane();
  Work first = communicator.StartAllGather(
      from_indices.buffer(), lane.BufferOf(all_indices.data_ptr(), rows, DType::kI64), counts);
  Work second = communicator.StartAllGather(
      from_values.buffer(),
      lane.BufferOf(all_values.data_ptr(), all_values.numel(), from_values.buffer().dtype),
      elements);
  first.Wait();
  second.Wait();
  lane.Leave();
  if (divisor != 1) all_values.div_(divisor);
  gradient =
      at::sparse_coo_tensor(all_indices.unsqueeze(0), all_values, parameter.sizes()).coalesce();
}

/// The gradients of the parameters of a DistributedOptimizer, from autograd's hooks to the reduced
/// values. A round is the time between two steps: the backward passes, and one reduction.
///
/// The reducer also has a flag: an empty gradient in the last bucket, which costs no operation. A
/// rank without data marks the flag as used. Only then the ranks exchange who has data.
///
/// Sparse gradients are gathered by rows at the end of the round.
class TrainedGradients {
 public:
  /// Collective. The constructor's errors are those of DistributedOptimizer.
  TrainedGradients(
      Communicator& communicator, const NamedTensors& parameters, const NamedTensors& sparse,
      const ReducerOptions& options, int passes_per_round, bool reuse_memory)
      : communicator_(communicator.Duplicate()),
        averages_(options.op == ReduceOp::kAverage),
        passes_per_round_(passes_per_round) {
    for (const auto& named : parameters) {
      Slot slot;
      slot.parameter = named.second;
      slot.name = named.first;
      slots_.push_back(std::move(slot));
    }
    for (const auto& named : sparse) rows_.push_back({named.first, named.second, {}, 0});
    lane_ = std::make_unique<Lane>(TheirDevice());
    std::vector<Gradient> gradients;
    if (HasFlag()) {
      const DType dtype =
          slots_.empty() ? DType::kF32 : CheckedDType(slots_[0].name, slots_[0].parameter);
      gradients.push_back({"(flag)", lane_->BufferOf(nullptr, 0, dtype)});
    }
    for (const Slot& slot : slots_) gradients.push_back(GradientOf(slot));
    reducer_ = std::make_shared<GradientReducer>(communicator, gradients, options);
    places_ = std::make_shared<Places>(reducer_);
    for (size_t i = 0; i < slots_.size(); ++i) {
      MakePlace(i);
      Watch(i);
    }
    for (size_t i = 0; i < rows_.size(); ++i) WatchRows(i);
    if (!OnCpu()) return;
    PlaceAllocator::Installed().Join(places_);
    if (reuse_memory) arena_ = std::make_unique<Arena::User>();
  }
  TrainedGradients(const TrainedGradients&) = delete;
  TrainedGradients& operator=(const TrainedGradients&) = delete;
  ~TrainedGradients() {
    for (Slot& slot : slots_) {
      slot.accumulator->del_post_hook(slot.hook);
      LeaveBlock(slot);
    }
    for (Rows& rows : rows_) rows.accumulator->del_post_hook(rows.hook);
    places_->open = false;
  }

  ReducerStatistics statistics() const { return reducer_->statistics(); }
  /// The depth of the NoSync scopes, in which no pass reduces anything.
  int& no_sync() { return no_sync_; }
  /// Whether the gradients of this round are reduced.
  bool finished() const { return finished_; }
  /// Whether this round has reduced a gradient, or has begun to.
  bool begun() const {
    for (const Slot& slot : slots_)
      if (slot.marked) return true;
    return finished_;
  }
  /// From now on this rank has no data, and takes part in the rounds of the other ranks.
  void set_away(bool is_away) { is_away_ = is_away; }
  /// The ranks that had data in this round, which is finished.
  const std::vector<int>& participants() const { return participants_; }

  /// Throws the error of a backward pass, after the round that the ranks had begun.
  void ThrowError() {
    if (error_ == nullptr) return;
    const std::exception_ptr error = std::exchange(error_, nullptr);
    BeginRound();
    std::rethrow_exception(error);
  }

  /// Zeroes the gradient of `parameter`. Writes no memory: other zeros replace the gradient, so
  /// autograd need not add to them.
  void Zero(const Tensor& parameter, Tensor& gradient) {
    for (Slot& slot : slots_) {
      if (slot.parameter.unsafeGetTensorImpl() != parameter.unsafeGetTensorImpl()) continue;
      if (gradient.layout() != at::kStrided || gradient.sizes() != slot.place.sizes() ||
          gradient.scalar_type() != slot.place.scalar_type() || !gradient.device().is_cpu())
        break;
      if (slot.blank == nullptr) slot.blank = std::make_unique<Blank>(slot.place);
      const Tensor zeros = slot.blank->Zeros();
      if (!zeros.defined()) break;
      gradient = zeros;
      return;
    }
    gradient.detach_();
    gradient.zero_();
  }

  /// Collective: reduces all gradients of this round.
  void FinishRound() {
    MarkTheRest();
    reducer_->Wait();
    const bool is_uneven = HasFlag() && reducer_->WasUsed(kFlag);
    lane_->Leave();
    for (size_t i = 0; i < slots_.size(); ++i) {
      Slot& slot = slots_[i];
      slot.marked = false;
      const Tensor& gradient = slot.parameter.grad();
      const bool has_none = is_away_ || !gradient.defined() || IsBlank(slot, gradient);
      if (has_none && reducer_->WasUsed(IndexOf(i))) {
        slot.parameter.mutable_grad() = slot.alone ? slot.result : slot.place;
      } else if (is_away_) {
        slot.parameter.mutable_grad().reset();
      }
      slot.result.reset();
    }
    finished_ = true;
    places_->open = false;
    LookForRanks(is_uneven);
    for (const Rows& rows : rows_) FinishRows(rows.name, rows.parameter);
  }

  /// Begins the next round.
  void BeginRound() {
    finished_ = false;
    in_backward_ = false;
    passes_ = 0;
    places_->open = false;
  }

  /// The trainer has zeroed the gradients, and may begin another pass without a step.
  void EndOfZeroing() {
    DropRound();
    if (!finished_) places_->open = true;
  }

 private:
  // The pointer's type differs between versions of LibTorch.
  using GradAccumulator =
      decltype(::torch::autograd::impl::grad_accumulator(std::declval<const Tensor&>()));

  // A parameter that is reduced.
  struct Slot {
    Tensor parameter;
    std::string name;
    bool alone = false;  // in its bucket
    Tensor place;   // its part of the reducer's block, in the parameter's strides; if alone, any
                    // gradient may use it
    Tensor result;  // if alone: the place in this round when autograd made no gradient
    GradAccumulator accumulator;
    uintptr_t hook = 0;
    std::unique_ptr<Blank> blank;  // set when it has been zeroed
    bool marked = false;           // in this round
  };

  // A parameter whose gradient is gathered by rows.
  struct Rows {
    std::string name;
    Tensor parameter;
    GradAccumulator accumulator;
    uintptr_t hook = 0;
  };

  bool HasFlag() const { return !slots_.empty() || !rows_.empty(); }

  static constexpr size_t kFlag = 0;                                 // in the reducer
  static constexpr size_t IndexOf(size_t slot) { return slot + 1; }  // in the reducer

  at::Device TheirDevice() const {
    if (slots_.empty()) return at::kCPU;
    const at::Device device = slots_[0].parameter.device();
    const auto check = [&](const std::string& name, const Tensor& parameter) {
      if (parameter.device() == device) return;
      Refuse(
          ErrorCode::kInvalidArgument, "parameter '", name, "' lies on ", parameter.device(),
          "; expected ", device, ", where parameter '", slots_[0].name, "' does");
    };
    for (const Slot& slot : slots_) check(slot.name, slot.parameter);
    for (const Rows& rows : rows_) check(rows.name, rows.parameter);
    return device;
  }
  bool OnCpu() const { return lane_->device().is_cpu(); }

  // The name includes the shape: ranks with different shapes should not reduce.
  Gradient GradientOf(const Slot& slot) const {
    return {
        Describe(slot.name, slot.parameter),
        lane_->BufferOf(nullptr, slot.parameter.numel(), CheckedDType(slot.name, slot.parameter))};
  }

  void MakePlace(size_t i) {
    Slot& slot = slots_[i];
    const Tensor& parameter = slot.parameter;
    void* data = reducer_->gradient(IndexOf(i)).data;
    // Autograd makes CPU gradients in places. GPU gradients are copied, which is cheap.
    slot.alone = OnCpu() && reducer_->IsAlone(IndexOf(i));
    if (slot.alone) places_->Add(data, SizeOf(slot));
    auto place = at::for_blob(data, parameter.sizes());
    // Autograd gives a gradient the strides of its parameter if these cover its memory.
    if (parameter.is_non_overlapping_and_dense()) place.strides(parameter.strides());
    slot.place = place.deleter([block = reducer_](void*) {})
                     .options(parameter.options().requires_grad(false))
                     .target_device(parameter.device())
                     .make_tensor();
  }

  static size_t SizeOf(const Slot& slot) {
    return static_cast<size_t>(slot.parameter.numel()) * slot.parameter.element_size();
  }

  void Watch(size_t i) {
    Slot& slot = slots_[i];
    slot.accumulator = ::torch::autograd::impl::grad_accumulator(slot.parameter);
    // The hook stays with the node, which only this object and autograd's graph know.
    slot.accumulator->add_pre_hook(
        std::make_unique<BeforeAccumulation>([this, i, alive = std::weak_ptr<int>(alive_)] {
          if (!alive.expired()) BeforeGradient(i);
        }));
    slot.hook = slot.accumulator->add_post_hook(
        std::make_unique<AfterAccumulation>([this, i] { OnGradient(i); }));
  }

  void WatchRows(size_t i) {
    Rows& rows = rows_[i];
    rows.accumulator = ::torch::autograd::impl::grad_accumulator(rows.parameter);
    rows.hook = rows.accumulator->add_post_hook(
        std::make_unique<AfterAccumulation>([this, i] { OnRows(i); }));
  }

  static bool IsBlank(const Slot& slot, const Tensor& gradient) {
    return gradient.defined() && slot.blank != nullptr && slot.blank->Is(gradient);
  }

  // Autograd calls this before it adds to a gradient. If the gradient is zeros, autograd then hands
  // its own gradient over instead.
  void BeforeGradient(size_t i) {
    Tensor& gradient = slots_[i].parameter.mutable_grad();
    if (IsBlank(slots_[i], gradient)) gradient.reset();
  }

  // The parameter continues without this object.
  void LeaveBlock(Slot& slot) {
    Tensor& gradient = slot.parameter.mutable_grad();
    if (!gradient.defined() ||
        !(slot.alone ? LiesInPlaces(gradient) : LiesIn(gradient, slot.place)))
      return;
    try {
      gradient = gradient.detach().clone();
    } catch (const std::exception&) {
      gradient.reset();
    }
  }

  // ---- Backward ----

  // Autograd calls this in the thread that runs backward().
  void OnGradient(size_t i) {
    if (no_sync_ > 0) return;
    try {
      if (finished_ || slots_[i].marked) RefuseSecondPass(slots_[i].name);
      EnterBackward();
      if (passes_ + 1 < passes_per_round_) return;
      CheckGradient(slots_[i]);
      Mark(i);
    } catch (...) {
      error_ = std::current_exception();
      throw;
    }
  }

  // The same for a sparse gradient, which the end of the round gathers.
  void OnRows(size_t i) {
    if (no_sync_ > 0) return;
    try {
      if (finished_) RefuseSecondPass(rows_[i].name);
      EnterBackward();
    } catch (...) {
      error_ = std::current_exception();
      throw;
    }
  }

  void EnterBackward() {
    if (in_backward_) return;
    in_backward_ = true;
    places_->open = true;
    ::torch::autograd::Engine::get_default_engine().queue_callback([this] { EndOfBackward(); });
  }

  void EndOfBackward() {
    in_backward_ = false;
    if (++passes_ < passes_per_round_) return;
    FinishRound();
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

  [[noreturn]] void RefuseSecondPass(const std::string& name) const {
    Refuse(
        ErrorCode::kInvalidArgument, "backward() reached parameter '", name,
        "', whose gradient this step has already reduced (after ", passes_per_round_,
        passes_per_round_ == 1 ? " pass" : " passes",
        "); call step() or zero_grad() before, set backward_passes_per_step to the passes of a "
        "step, or run all but the last one in a NoSync() scope");
  }

  static void CheckGradient(const Slot& slot) {
    const Tensor& gradient = slot.parameter.grad();
    const std::string what = "the gradient of parameter '" + slot.name + "'";
    if (gradient.layout() != at::kStrided) {
      Refuse(
          ErrorCode::kInvalidArgument, what, " has layout ", gradient.layout(),
          "; expected a dense one (of an embedding with sparse(true): pass the module to the "
          "DistributedOptimizer)");
    }
    if (gradient.device() != slot.place.device()) {
      Refuse(
          ErrorCode::kInvalidArgument, what, " lies on ", gradient.device(),
          "; when it was wrapped the parameter lay on ", slot.place.device(),
          " (move the module before)");
    }
    if (gradient.scalar_type() != slot.place.scalar_type() ||
        gradient.sizes() != slot.place.sizes()) {
      Refuse(
          ErrorCode::kInvalidArgument, what, " is ", gradient.scalar_type(), gradient.sizes(),
          "; when it was wrapped it was ", slot.place.scalar_type(), slot.place.sizes(),
          " (convert the module before)");
    }
    if (gradient.requires_grad()) {
      Refuse(
          ErrorCode::kInvalidArgument, what,
          " has a graph of its own (create_graph); expected backward() without create_graph");
    }
  }

  static bool LiesIn(const Tensor& gradient, const Tensor& place) {
    return gradient.layout() == at::kStrided && gradient.device() == place.device() &&
           gradient.data_ptr() == place.data_ptr() && gradient.strides() == place.strides();
  }

  bool LiesInPlaces(const Tensor& gradient) const {
    return gradient.layout() == at::kStrided && gradient.device().is_cpu() &&
           places_->Contain(gradient.data_ptr());
  }

  // A small gradient is copied into the block once, while it is still in the cache, and then points
  // there.
  void Mark(size_t i) {
    Slot& slot = slots_[i];
    slot.marked = true;
    if (slot.alone) return MarkAlone(i);
    const Tensor& gradient = slot.parameter.grad();
    const bool same_strides = gradient.strides() == slot.place.strides();
    const bool is_there = LiesIn(gradient, slot.place);
    if (!is_there && !same_strides) {
      ::torch::NoGradGuard no_grad;
      slot.place.copy_(gradient);
    }
    lane_->Enter();
    if (is_there || !same_strides) {
      reducer_->MarkReady(IndexOf(i));
    } else {
      reducer_->MarkReadyFrom(IndexOf(i), gradient.data_ptr());
      lane_->Leave();  // memory of the gradient may be used again
    }
    if (!is_there) slot.parameter.mutable_grad() = slot.place;
  }

  // Autograd has made the gradient in a place, or it is copied to one. If no place is free, because
  // the trainer keeps gradients of earlier steps, it is reduced in its own memory.
  void MarkAlone(size_t i) {
    Slot& slot = slots_[i];
    Tensor& gradient = slot.parameter.mutable_grad();
    void* data = gradient.data_ptr();
    const bool same_strides = gradient.strides() == slot.place.strides();
    if (same_strides && places_->Contain(data))
      return reducer_->MarkReadyAt(IndexOf(i), data, data);
    Tensor place = FreePlace(slot);
    if (same_strides) {
      reducer_->MarkReadyAt(IndexOf(i), data, place.defined() ? place.data_ptr() : data);
    } else {
      ::torch::NoGradGuard no_grad;
      if (!place.defined()) place = ::torch::empty_like(slot.place);
      place.copy_(gradient);
      reducer_->MarkReadyAt(IndexOf(i), place.data_ptr(), place.data_ptr());
    }
    if (place.defined()) gradient = place;
  }

  // Undefined if no place is free.
  Tensor FreePlace(const Slot& slot) {
    const std::shared_ptr<void> place = places_->Borrow(SizeOf(slot));
    if (place == nullptr) return Tensor();
    return ::torch::from_blob(
        place.get(), slot.place.sizes(), slot.place.strides(), [place](void*) {},
        slot.place.options());
  }

  void MarkUnused(size_t i) {
    Slot& slot = slots_[i];
    slot.marked = true;
    lane_->Enter();
    if (!slot.alone) return reducer_->MarkUnused(IndexOf(i));
    slot.result = FreePlace(slot);
    if (!slot.result.defined()) slot.result = ::torch::empty_like(slot.place);
    reducer_->MarkUnusedAt(IndexOf(i), slot.result.data_ptr());
  }

  // ---- The end of a round ----

  // Marks the gradients that no hook has marked: gradients that were set by hand or come from
  // earlier passes, and missing gradients.
  void MarkTheRest() {
    for (size_t i = slots_.size(); i-- > 0;) {
      Slot& slot = slots_[i];
      if (slot.marked) continue;
      bool usable =
          !is_away_ && slot.parameter.grad().defined() && !IsBlank(slot, slot.parameter.grad());
      try {
        if (usable) CheckGradient(slot);
      } catch (const Error&) {
        if (error_ == nullptr) error_ = std::current_exception();
        usable = false;  // the other ranks are in this round already
      }
      if (usable) {
        Mark(i);
      } else {
        MarkUnused(i);
      }
    }
    if (!HasFlag()) return;
    if (is_away_) {
      reducer_->MarkReady(kFlag);
    } else {
      reducer_->MarkUnused(kFlag);
    }
  }

  // Rows that cannot be reduced count as none: the other ranks are in this round already.
  void FinishRows(const std::string& name, const Tensor& parameter) {
    Tensor& gradient = parameter.mutable_grad();
    if (is_away_) gradient.reset();
    if (gradient.defined() && gradient.layout() != at::kSparse) {
      if (error_ == nullptr) {
        error_ = std::make_exception_ptr(Error(
            ErrorCode::kInvalidArgument,
            Text(
                "the gradient of parameter '", name, "' has layout ", gradient.layout(),
                "; its embedding has the option sparse(true), and nothing else may use it")));
      }
      gradient.reset();
    }
    const auto with_data = static_cast<double>(participants_.size());
    ReduceRows(communicator_, name, parameter, averages_ && with_data > 0 ? with_data : 1);
  }

  // If some ranks had no data: finds the others, and averages over them alone.
  void LookForRanks(bool is_uneven) {
    participants_.clear();
    std::vector<uint8_t> away(static_cast<size_t>(communicator_.size()));
    uint8_t mine = is_away_ ? 1 : 0;
    if (is_uneven) communicator_.AllGather(Buffer(&mine, 1), Buffer(away.data(), away.size()));
    for (size_t rank = 0; rank < away.size(); ++rank)
      if (away[rank] == 0) participants_.push_back(static_cast<int>(rank));
    if (participants_.size() == away.size() || participants_.empty() || !averages_) return;
    ::torch::NoGradGuard no_grad;
    const double factor =
        static_cast<double>(away.size()) / static_cast<double>(participants_.size());
    for (size_t i = 0; i < slots_.size(); ++i)
      if (reducer_->WasUsed(IndexOf(i))) slots_[i].parameter.mutable_grad().mul_(factor);
  }

  // If a gradient is marked, other ranks wait for this round: step() must finish it first.
  void DropRound() {
    if (error_ != nullptr && !finished_) return;
    for (const Slot& slot : slots_) {
      if (slot.marked) return;
    }
    error_ = nullptr;
    BeginRound();
  }

  Communicator communicator_;  // for ranks without data
  bool averages_;
  int passes_per_round_;
  std::vector<Slot> slots_;
  std::vector<Rows> rows_;
  std::unique_ptr<Lane> lane_;
  std::shared_ptr<GradientReducer> reducer_;
  std::shared_ptr<Places> places_;  // of the gradients that are alone in their bucket
  std::unique_ptr<Arena::User> arena_;
  int no_sync_ = 0;                                        // living scopes
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);  // as long as this object
  bool is_away_ = false;
  std::vector<int> participants_;

  // The state of this round.
  bool finished_ = false;  // the gradients are reduced
  bool in_backward_ = false;
  int passes_ = 0;
  std::exception_ptr error_;
};

}  // namespace internal
}  // namespace torch
}  // namespace dtrun

#endif  // DTRUN_DETAIL_TORCH_GRADIENTS_H_
