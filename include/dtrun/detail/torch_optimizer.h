#ifndef DTRUN_DETAIL_TORCH_OPTIMIZER_H_
#define DTRUN_DETAIL_TORCH_OPTIMIZER_H_

#include <dtrun/detail/torch_delta.h>
#include <dtrun/detail/torch_hooks.h>
#include <dtrun/detail/torch_loss_scale.h>
#include <dtrun/detail/torch_memory.h>
#include <dtrun/detail/torch_tensors.h>
#include <dtrun/gradient_reducer.h>
#include <torch/csrc/autograd/engine.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace dtrun {
namespace torch {

/// The options of a dtrun::torch::DistributedOptimizer. All ranks pass the same options.
struct DistributedOptions {
  /// kAverage, or kSum if the loss is already divided by the global batch, or kAdasum. With
  /// kAdasum, the inner optimizer steps with this rank's own gradients. Then step() combines the
  /// parameter changes of all ranks by adaptive summation: see dtrun::DistributedOptions::op. No
  /// gradient is reduced, backward() needs no other rank, and the options for the reduction of
  /// gradients have no effect.
  ReduceOp op = ReduceOp::kAverage;
  /// The size of a bucket: a bucket's reduction starts when all of the bucket is complete. 0: the
  /// option `bucket_bytes`.
  uint64_t bucket_bytes = 0;
  /// The number of backward() calls before a step. Their gradients add up, as in one process, and
  /// are reduced once, in the last call.
  int backward_passes_per_step = 1;
  /// With a module: all ranks start from rank 0's parameters and buffers.
  bool broadcast = true;
  /// With a module, true: after each step, rank 0's buffers (the running statistics of a BatchNorm)
  /// go to all ranks. False: each rank keeps its own buffers.
  bool sync_buffers = false;
  /// The size of the first bucket that a backward pass fills. 0: 1 MiB, or `bucket_bytes` if that
  /// is less.
  uint64_t first_bucket_bytes = 0;
  /// The wire format of f32 and f64 gradients.
  Wire wire = Wire::kNone;
  /// True: while this object lives, large CPU tensors of the process reuse the memory of freed
  /// tensors, instead of new pages from the system: see torch_memory.h.
  bool reuse_memory = true;
};

/// Wraps an optimizer of LibTorch so that every step uses the gradients of all ranks. It is a
/// torch::optim::Optimizer itself: code that takes one by reference works unchanged, with learning
/// rate schedulers, closures and torch::save.
///
/// **Overlap.** When all gradients of a bucket are complete, the bucket's reduction starts, in
/// memory that all ranks of the host map. Autograd makes large gradients in that memory; small
/// gradients are copied there. `backward()` returns when all gradients are reduced. With several
/// passes per step, only the last pass reduces. If a rank's backward pass reaches no parameter,
/// that rank takes part in `step()`.
///
/// **zero_grad** works in both modes, on the optimizer, the module or each gradient. `zero_grad()`
/// of this class writes no memory: it points gradients at zeros that the system makes at the first
/// touch. After it, a trainer may drop a step and start the next backward pass. With other ways to
/// zero, gradients stay in the mapped memory, and autograd adds to the zeros there.
///
/// **Memory.** For large gradients, this class wraps LibTorch's CPU allocator, for the rest of the
/// process: see torch_memory.h. It also keeps the memory of freed tensors for new tensors
/// (`reuse_memory`).
///
/// **Unused parameters.** If some ranks have no gradient, they contribute zeros. If all ranks have
/// none, the gradient stays undefined, and the inner optimizer skips the parameter, as in one
/// process. Parameters that do not require a gradient are not changed. Tied parameters are reduced
/// once.
///
/// **Groups and options.** The groups of this object count: options that a scheduler sets here
/// reach the inner optimizer before its step. Options that were changed in the inner optimizer are
/// copied here. If both were changed differently, step() refuses. The inner optimizer holds the
/// state.
///
/// **Errors** are dtrun::Error, also from `backward()`, and name the parameter. After an error of
/// backward(), `step()` finishes the round that the ranks had begun, throws the error again and
/// updates nothing.
///
/// **GPUs.** All parameters lie on the same GPU. Gradients are copied into the block in the stream
/// that makes them. They are reduced in another stream while the backward pass continues. The host
/// waits for other ranks only at the end of the last backward pass, or in step(), to learn which
/// gradients exist. With `wire` or kAdasum, gradients go through host memory, and the host waits.
///
/// Not thread-safe. Gradients lie in memory of this object: destroy it before the Context. Do not
/// change parameters through the inner optimizer.
class DistributedOptimizer : public ::torch::optim::Optimizer, public internal::StepsTogether {
 public:
  /// Collective: all ranks pass optimizers of the same parameters. The module holds some or all of
  /// the parameters and gives them their names; see also DistributedOptions. `inner` outlives this
  /// object.
  ///
  /// Errors: kMismatch (names the first parameter that differs, and the ranks), kInvalidArgument
  /// (LBFGS, types without an average, several devices), kUnavailable (a device other than the CPU
  /// and CUDA GPUs).
  DistributedOptimizer(
      Communicator& communicator, ::torch::optim::Optimizer& inner,
      const ::torch::nn::Module& module, DistributedOptions options = {})
      : DistributedOptimizer(communicator, Borrowed(inner), module, options) {}
  /// The same with an optimizer that this object keeps alive. A unique_ptr also works.
  DistributedOptimizer(
      Communicator& communicator, std::shared_ptr<::torch::optim::Optimizer> inner,
      const ::torch::nn::Module& module, DistributedOptions options = {})
      : DistributedOptimizer(communicator, std::move(inner), internal::NamesOf(module), options) {
    if (options.broadcast) BroadcastParameters(communicator, module);
    if (!options.sync_buffers) return;
    buffers_ = internal::BuffersOf(module);
    buffer_communicator_ = std::make_unique<Communicator>(communicator.Duplicate());
  }
  /// Without a module: the names of parameters are their group and position, and nothing is
  /// broadcast.
  DistributedOptimizer(
      Communicator& communicator, ::torch::optim::Optimizer& inner, DistributedOptions options = {})
      : DistributedOptimizer(communicator, Borrowed(inner), internal::Names{}, options) {}
  /// Without a module, and with an optimizer that this object keeps alive.
  DistributedOptimizer(
      Communicator& communicator, std::shared_ptr<::torch::optim::Optimizer> inner,
      DistributedOptions options = {})
      : DistributedOptimizer(communicator, std::move(inner), internal::Names{}, options) {}

  DistributedOptimizer(const DistributedOptimizer&) = delete;
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  ~DistributedOptimizer() override {
    for (Slot& slot : slots_) {
      slot.accumulator->del_post_hook(slot.hook);
      LeaveBlock(slot);
    }
    places_->open = false;
  }

  /// Collective. Calls the closure, if there is one, which calls backward(). Then calls the inner
  /// optimizer's step with the reduced gradients. Returns the closure's loss.
  Tensor step(LossClosure closure = nullptr) override {
    Tensor loss;
    if (closure) {
      at::AutoGradMode enable_grad(true);
      loss = closure();
    }
    Synchronize();
    BeginRound();
    groups_.ShareOptions(param_groups_, inner_->param_groups());
    if (agreement_ != nullptr) scaled_->Agree(*agreement_);
    if (deltas_ != nullptr) deltas_->Begin();
    inner_->step();
    if (deltas_ != nullptr) deltas_->End();
    if (!buffers_.empty()) internal::BroadcastAll(*buffer_communicator_, buffers_, 0);
    return loss;
  }

  /// The time that steps took on this rank: see <dtrun/detail/statistics.h>.
  ReducerStatistics statistics() const { return reducer_->statistics(); }

  /// Collective: afterwards all gradients hold the result, as after backward(). step() calls it.
  /// Call it yourself to read reduced gradients before step(), if the last backward pass did not
  /// reduce them: it ran in a NoSync scope, or there was no pass.
  void Synchronize() {
    groups_.Check(param_groups_);
    groups_.Check(inner_->param_groups());
    if (no_sync_ > 0) {
      internal::Refuse(
          ErrorCode::kInvalidArgument,
          "step() inside a NoSync scope would let the ranks drift apart; end the scope before");
    }
    if (!finished_) FinishRound();
    if (error_ == nullptr) return;
    const std::exception_ptr error = std::exchange(error_, nullptr);
    BeginRound();
    std::rethrow_exception(error);
  }

  /// While it lives, backward() reduces nothing, and gradients add up on this rank alone.
  ///
  ///   { auto scope = optimizer.NoSync();  loss(first).backward(); }
  ///   loss(second).backward();  optimizer.step();  // reduces the gradients of both
  class [[nodiscard]] NoSyncScope {
   public:
    /// Begins the scope. NoSync() calls it. `depth` outlives the scope.
    explicit NoSyncScope(int& depth) : depth_(depth) { ++depth_; }
    ~NoSyncScope() { --depth_; }
    NoSyncScope(const NoSyncScope&) = delete;
    NoSyncScope& operator=(const NoSyncScope&) = delete;

   private:
    int& depth_;
  };
  /// Returns a scope. All ranks use it in the same passes. It ends before step().
  NoSyncScope NoSync() { return NoSyncScope(no_sync_); }

  /// The same as LibTorch's. Afterwards a backward pass may begin, with or without a step() before.
  void zero_grad() { zero_grad(false); }
  /// The same. `set_to_none`: gradients become undefined instead of zero.
  void zero_grad(bool set_to_none) {
    for (auto& group : param_groups_) {
      for (Tensor& parameter : group.params()) {
        Tensor& gradient = parameter.mutable_grad();
        if (!gradient.defined()) continue;
        if (set_to_none) {
          gradient.reset();
        } else {
          Zero(parameter, gradient);
        }
      }
    }
    DropRound();
    if (!finished_) places_->open = true;
  }

  /// The inner optimizer, which holds the state.
  ::torch::optim::Optimizer& inner() { return *inner_; }

  /// Saves the inner optimizer. Local.
  void save(::torch::serialize::OutputArchive& archive) const override { inner_->save(archive); }
  /// Loads the inner optimizer. Local: all ranks load the same state.
  void load(::torch::serialize::InputArchive& archive) override { inner_->load(archive); }

 private:
  // A parameter that is reduced.
  struct Slot {
    Tensor parameter;
    std::string name;
    bool alone = false;  // in its bucket
    Tensor place;   // its part of the reducer's block, in the parameter's strides; if alone, any
                    // gradient may use it
    Tensor result;  // if alone: the place in this round when autograd made no gradient
    std::shared_ptr<::torch::autograd::Node> accumulator;
    uintptr_t hook = 0;
    std::unique_ptr<internal::Blank> blank;  // set when it has been zeroed
    bool marked = false;                     // in this round
  };

  DistributedOptimizer(
      Communicator& communicator, std::shared_ptr<::torch::optim::Optimizer> inner,
      internal::Names names, DistributedOptions options)
      : Optimizer(GroupsOf(inner.get()), DefaultsOf(inner.get())),
        inner_(std::move(inner)),
        options_(options),
        groups_(std::move(names)) {
    CheckOptions();
    for (size_t g = 0; g < param_groups_.size(); ++g) {
      groups_.Add(param_groups_[g]);
      for (size_t k = 0; k < param_groups_[g].params().size(); ++k) Register(g, k);
    }
    lane_ = std::make_unique<internal::Lane>(TheirDevice());
    ReducerOptions told;
    if (options.op == ReduceOp::kAdasum) {
      internal::NamedTensors shared;
      for (const Slot& slot : slots_) shared.emplace_back(slot.name, slot.parameter);
      deltas_ = std::make_unique<internal::DeltaReduction>(communicator, shared);
      slots_.clear();  // no gradient is reduced
      scaled_ = dynamic_cast<LossScaleOptimizer*>(inner_.get());
      if (scaled_ != nullptr) agreement_ = std::make_unique<Communicator>(communicator.Duplicate());
    } else {
      told.op = options.op;
    }
    std::vector<Gradient> gradients;
    for (const Slot& slot : slots_) gradients.push_back(GradientOf(slot));
    told.bucket_bytes = options.bucket_bytes;
    told.first_bucket_bytes = options.first_bucket_bytes;
    told.wire = options.wire;
    reducer_ = std::make_shared<GradientReducer>(communicator, gradients, told);
    places_ = std::make_shared<internal::Places>(reducer_);
    for (size_t i = 0; i < slots_.size(); ++i) {
      MakePlace(i);
      Watch(i);
    }
    if (!OnCpu()) return;
    internal::PlaceAllocator::Installed().Join(places_);
    if (options.reuse_memory) arena_ = std::make_unique<internal::Arena::User>();
  }

  static std::shared_ptr<::torch::optim::Optimizer> Borrowed(::torch::optim::Optimizer& inner) {
    return std::shared_ptr<::torch::optim::Optimizer>(std::shared_ptr<void>(), &inner);
  }

  static const std::vector<::torch::optim::OptimizerParamGroup>& GroupsOf(
      const ::torch::optim::Optimizer* inner) {
    if (inner == nullptr) {
      internal::Refuse(
          ErrorCode::kInvalidArgument, "DistributedOptimizer: the inner optimizer is null");
    }
    if (dynamic_cast<const ::torch::optim::LBFGS*>(inner) != nullptr) {
      internal::Refuse(
          ErrorCode::kInvalidArgument,
          "DistributedOptimizer: LBFGS takes several gradients in one step, and their number "
          "depends on the loss of one rank; expected an optimizer with one gradient per step (SGD, "
          "Adam, AdamW, RMSprop, Adagrad)");
    }
    return inner->param_groups();
  }

  static std::unique_ptr<::torch::optim::OptimizerOptions> DefaultsOf(
      const ::torch::optim::Optimizer* inner) {
    return inner == nullptr ? nullptr : inner->defaults().clone();
  }

  void CheckOptions() const {
    if (options_.op != ReduceOp::kAverage && options_.op != ReduceOp::kSum &&
        options_.op != ReduceOp::kAdasum) {
      internal::Refuse(
          ErrorCode::kInvalidArgument, "DistributedOptimizer: op is ", NameOf(options_.op),
          "; expected average, sum or adasum");
    }
    if (options_.backward_passes_per_step < 1) {
      internal::Refuse(
          ErrorCode::kInvalidArgument, "DistributedOptimizer: backward_passes_per_step is ",
          options_.backward_passes_per_step, "; expected 1 or more");
    }
  }

  // ---- Registration ----

  void Register(size_t group, size_t k) {
    const Tensor& parameter = param_groups_[group].params()[k];
    const at::TensorImpl* tensor = parameter.unsafeGetTensorImpl();
    if (!parameter.requires_grad()) return;
    for (const Slot& slot : slots_) {
      if (slot.parameter.unsafeGetTensorImpl() == tensor) return;  // tied
    }
    Slot slot;
    slot.parameter = parameter;
    slot.name = groups_.NameOf(parameter, group, k);
    const std::string what = "parameter '" + slot.name + "'";
    internal::CheckedDevice(what, parameter);
    if (!at::isFloatingType(parameter.scalar_type())) {
      internal::Refuse(
          ErrorCode::kInvalidArgument, what, " has elements of type ", parameter.scalar_type(),
          "; expected f16, bf16, f32 or f64");
    }
    internal::CheckedDType(what, parameter);
    slots_.push_back(std::move(slot));
  }

  at::Device TheirDevice() const {
    if (slots_.empty()) return at::kCPU;
    const at::Device device = slots_[0].parameter.device();
    for (const Slot& slot : slots_) {
      if (slot.parameter.device() == device) continue;
      internal::Refuse(
          ErrorCode::kInvalidArgument, "parameter '", slot.name, "' lies on ",
          slot.parameter.device(), "; expected ", device, ", where parameter '", slots_[0].name,
          "' does");
    }
    return device;
  }
  bool OnCpu() const { return lane_->device().is_cpu(); }

  // The name includes the shape: ranks with different shapes should not reduce.
  Gradient GradientOf(const Slot& slot) const {
    return {
        internal::Describe(slot.name, slot.parameter),
        lane_->BufferOf(
            nullptr, slot.parameter.numel(), internal::CheckedDType(slot.name, slot.parameter))};
  }

  void MakePlace(size_t i) {
    Slot& slot = slots_[i];
    const Tensor& parameter = slot.parameter;
    void* data = reducer_->gradient(i).data;
    // Autograd makes CPU gradients in places. GPU gradients are copied, which is cheap.
    slot.alone = OnCpu() && reducer_->IsAlone(i);
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
    slot.accumulator->add_pre_hook(std::make_unique<internal::BeforeAccumulation>(
        [this, i, alive = std::weak_ptr<int>(alive_)] {
          if (!alive.expired()) BeforeGradient(i);
        }));
    slot.hook = slot.accumulator->add_post_hook(
        std::make_unique<internal::AfterAccumulation>([this, i] { OnGradient(i); }));
  }

  // Writes no memory: other zeros replace the gradient, so autograd need not add to them.
  void Zero(const Tensor& parameter, Tensor& gradient) {
    for (Slot& slot : slots_) {
      if (slot.parameter.unsafeGetTensorImpl() != parameter.unsafeGetTensorImpl()) continue;
      if (gradient.layout() != at::kStrided || gradient.sizes() != slot.place.sizes() ||
          gradient.scalar_type() != slot.place.scalar_type() || !gradient.device().is_cpu())
        break;
      if (slot.blank == nullptr) slot.blank = std::make_unique<internal::Blank>(slot.place);
      const Tensor zeros = slot.blank->Zeros();
      if (!zeros.defined()) break;
      gradient = zeros;
      return;
    }
    gradient.detach_();
    gradient.zero_();
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
      if (finished_ || slots_[i].marked) RefuseSecondPass(slots_[i]);
      if (!in_backward_) {
        in_backward_ = true;
        places_->open = true;
        ::torch::autograd::Engine::get_default_engine().queue_callback([this] { EndOfBackward(); });
      }
      if (passes_ + 1 < options_.backward_passes_per_step) return;
      CheckGradient(slots_[i]);
      Mark(i);
    } catch (...) {
      error_ = std::current_exception();
      throw;
    }
  }

  void EndOfBackward() {
    in_backward_ = false;
    if (++passes_ < options_.backward_passes_per_step) return;
    FinishRound();
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

  [[noreturn]] void RefuseSecondPass(const Slot& slot) const {
    internal::Refuse(
        ErrorCode::kInvalidArgument, "backward() reached parameter '", slot.name,
        "', whose gradient this step has already reduced (after ",
        options_.backward_passes_per_step,
        options_.backward_passes_per_step == 1 ? " pass" : " passes",
        "); call step() or zero_grad() before, set backward_passes_per_step to the passes of a "
        "step, or run all but the last one in a NoSync() scope");
  }

  static void CheckGradient(const Slot& slot) {
    const Tensor& gradient = slot.parameter.grad();
    const std::string what = "the gradient of parameter '" + slot.name + "'";
    if (gradient.layout() != at::kStrided) {
      internal::Refuse(
          ErrorCode::kInvalidArgument, what, " has layout ", gradient.layout(),
          "; expected a dense one (of an embedding: the option sparse(false))");
    }
    if (gradient.device() != slot.place.device()) {
      internal::Refuse(
          ErrorCode::kInvalidArgument, what, " lies on ", gradient.device(),
          "; when it was wrapped the parameter lay on ", slot.place.device(),
          " (move the module before)");
    }
    if (gradient.scalar_type() != slot.place.scalar_type() ||
        gradient.sizes() != slot.place.sizes()) {
      internal::Refuse(
          ErrorCode::kInvalidArgument, what, " is ", gradient.scalar_type(), gradient.sizes(),
          "; when it was wrapped it was ", slot.place.scalar_type(), slot.place.sizes(),
          " (convert the module before)");
    }
    if (gradient.requires_grad()) {
      internal::Refuse(
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
      reducer_->MarkReady(i);
    } else {
      reducer_->MarkReadyFrom(i, gradient.data_ptr());
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
    if (same_strides && places_->Contain(data)) return reducer_->MarkReadyAt(i, data, data);
    Tensor place = FreePlace(slot);
    if (same_strides) {
      reducer_->MarkReadyAt(i, data, place.defined() ? place.data_ptr() : data);
    } else {
      ::torch::NoGradGuard no_grad;
      if (!place.defined()) place = ::torch::empty_like(slot.place);
      place.copy_(gradient);
      reducer_->MarkReadyAt(i, place.data_ptr(), place.data_ptr());
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
    if (!slot.alone) return reducer_->MarkUnused(i);
    slot.result = FreePlace(slot);
    if (!slot.result.defined()) slot.result = ::torch::empty_like(slot.place);
    reducer_->MarkUnusedAt(i, slot.result.data_ptr());
  }

  // ---- A round: the time between two steps ----

  // Marks the gradients that no hook has marked: gradients that were set by hand or come from
  // earlier passes, and missing gradients.
  void MarkTheRest() {
    for (size_t i = slots_.size(); i-- > 0;) {
      Slot& slot = slots_[i];
      if (slot.marked) continue;
      bool usable = slot.parameter.grad().defined() && !IsBlank(slot, slot.parameter.grad());
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
  }

  void FinishRound() {
    MarkTheRest();
    reducer_->Wait();
    lane_->Leave();
    for (size_t i = 0; i < slots_.size(); ++i) {
      Slot& slot = slots_[i];
      slot.marked = false;
      const Tensor& gradient = slot.parameter.grad();
      if ((!gradient.defined() || IsBlank(slot, gradient)) && reducer_->WasUsed(i))
        slot.parameter.mutable_grad() = slot.alone ? slot.result : slot.place;
      slot.result.reset();
    }
    finished_ = true;
    places_->open = false;
  }

  void BeginRound() {
    finished_ = false;
    in_backward_ = false;
    passes_ = 0;
    places_->open = false;
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

  std::shared_ptr<::torch::optim::Optimizer> inner_;
  DistributedOptions options_;
  internal::Groups groups_;
  std::vector<Slot> slots_;
  std::unique_ptr<internal::Lane> lane_;
  std::shared_ptr<GradientReducer> reducer_;
  std::shared_ptr<internal::Places> places_;  // of the gradients that are alone in their bucket
  std::unique_ptr<internal::Arena::User> arena_;
  std::unique_ptr<internal::DeltaReduction> deltas_;  // null: gradients are reduced
  LossScaleOptimizer* scaled_ = nullptr;              // the inner optimizer, if `agreement_` is set
  std::unique_ptr<Communicator> agreement_;           // of a loss scale with `deltas_`
  internal::NamedTensors buffers_;                    // to be synchronised
  std::unique_ptr<Communicator> buffer_communicator_;
  int no_sync_ = 0;                                        // living scopes
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);  // as long as this object

  // The state of this round.
  bool finished_ = false;  // the gradients are reduced
  bool in_backward_ = false;
  int passes_ = 0;
  std::exception_ptr error_;
};

}  // namespace torch
}  // namespace dtrun

#endif
