#ifndef DTRUN_DETAIL_TORCH_OPTIMIZER_H_
#define DTRUN_DETAIL_TORCH_OPTIMIZER_H_

#include <dtrun/detail/torch_delta.h>
#include <dtrun/detail/torch_gradients.h>
#include <dtrun/detail/torch_hooks.h>
#include <dtrun/detail/torch_loss_scale.h>
#include <dtrun/detail/torch_tensors.h>
#include <dtrun/gradient_reducer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
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
  /// A user-defined wire format, instead of `wire`: it compresses each bucket before the reduction
  /// and decompresses the result, and may keep its error for the next step. See WireFormat.
  std::shared_ptr<WireFormat> wire_format = nullptr;
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
/// **Sparse gradients** of embeddings with the option `sparse` are gathered by rows, if the module
/// is given. They stay sparse, and wire formats do not apply to them.
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
/// gradients exist. With a wire format or kAdasum, gradients go through host memory, and the host
/// waits.
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
      : DistributedOptimizer(
            communicator, std::move(inner), internal::NamesOf(module), options,
            internal::SparseOf(module)) {
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

  /// Collective. Calls the closure, if there is one, which calls backward(). Then calls the inner
  /// optimizer's step with the reduced gradients. Returns the closure's loss.
  Tensor step(LossClosure closure = nullptr) override {
    Tensor loss;
    if (closure) {
      at::AutoGradMode enable_grad(true);
      loss = closure();
    }
    Synchronize();
    Update();
    return loss;
  }

  /// For uneven data: this rank has no more data. It takes part in the steps of the other ranks
  /// without gradients, until all ranks have joined. An average divides by the number of ranks that
  /// have data. Steps in which all ranks have data have no extra cost. Collective: every rank calls
  /// it once, at the end of its data.
  ///
  /// The inner optimizer also steps on this rank, with the gradients of the other ranks, so that
  /// parameters and optimizer state stay the same on all ranks. `before_step` runs before each of
  /// these steps: do there the trainer's own work, for example, step a scheduler. With
  /// `sync_buffers`, the buffers are those of the lowest rank that has data.
  ///
  /// If gradients were made since the last step, Join first makes a step with them. Returns the
  /// rank that joined last; of several, the highest. Errors: kInvalidArgument with kAdasum and in a
  /// NoSync scope. The other ranks of a SyncBatchNorms would wait for this rank: leave its scope
  /// before.
  int Join(const std::function<void()>& before_step = {}) {
    if (deltas_ != nullptr) {
      internal::Refuse(
          ErrorCode::kInvalidArgument, "Join(): op is adasum; expected average or sum");
    }
    if (gradients_->begun()) step();
    int64_t joined = steps_;
    gradients_->set_away(true);
    for (Synchronize(); !gradients_->participants().empty(); Synchronize()) {
      if (before_step) before_step();
      Update();
    }
    gradients_->set_away(false);
    gradients_->BeginRound();
    Counts all = communicator_.AllGatherCounts(static_cast<uint64_t>(joined));
    int last = 0;
    for (size_t rank = 0; rank < all.size(); ++rank)
      if (all[rank] >= all[static_cast<size_t>(last)]) last = static_cast<int>(rank);
    return last;
  }

  /// The time that steps took on this rank: see <dtrun/detail/statistics.h>.
  ReducerStatistics statistics() const { return gradients_->statistics(); }

  /// Collective: afterwards all gradients hold the result, as after backward(). step() calls it.
  /// Call it yourself to read reduced gradients before step(), if the last backward pass did not
  /// reduce them: it ran in a NoSync scope, or there was no pass.
  void Synchronize() {
    groups_.Check(param_groups_);
    groups_.Check(inner_->param_groups());
    if (gradients_->no_sync() > 0) {
      internal::Refuse(
          ErrorCode::kInvalidArgument,
          "step() inside a NoSync scope would let the ranks drift apart; end the scope before");
    }
    if (!gradients_->finished()) gradients_->FinishRound();
    gradients_->ThrowError();
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
  NoSyncScope NoSync() { return NoSyncScope(gradients_->no_sync()); }

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
          gradients_->Zero(parameter, gradient);
        }
      }
    }
    gradients_->EndOfZeroing();
  }

  /// The inner optimizer, which holds the state.
  ::torch::optim::Optimizer& inner() { return *inner_; }

  /// Saves the inner optimizer. Local.
  void save(::torch::serialize::OutputArchive& archive) const override { inner_->save(archive); }
  /// Loads the inner optimizer. Local: all ranks load the same state.
  void load(::torch::serialize::InputArchive& archive) override { inner_->load(archive); }

 private:
  DistributedOptimizer(
      Communicator& communicator, std::shared_ptr<::torch::optim::Optimizer> inner,
      internal::Names names, DistributedOptions options,
      const std::set<const at::TensorImpl*>& sparse = {})
      : Optimizer(GroupsOf(inner.get()), DefaultsOf(inner.get())),
        inner_(std::move(inner)),
        options_(options),
        groups_(std::move(names)),
        communicator_(communicator.Duplicate()) {
    CheckOptions();
    internal::NamedTensors shared;
    for (size_t g = 0; g < param_groups_.size(); ++g) {
      groups_.Add(param_groups_[g]);
      for (size_t k = 0; k < param_groups_[g].params().size(); ++k) Register(g, k, shared);
    }
    ReducerOptions told;
    if (options.op == ReduceOp::kAdasum) {
      deltas_ = std::make_unique<internal::DeltaReduction>(communicator, shared);
      shared.clear();  // no gradient is reduced
      scaled_ = dynamic_cast<LossScaleOptimizer*>(inner_.get());
      if (scaled_ != nullptr) agreement_ = std::make_unique<Communicator>(communicator.Duplicate());
    } else {
      told.op = options.op;
    }
    internal::NamedTensors dense, rows;
    for (const auto& named : shared)
      (sparse.count(named.second.unsafeGetTensorImpl()) > 0 ? rows : dense).push_back(named);
    told.bucket_bytes = options.bucket_bytes;
    told.first_bucket_bytes = options.first_bucket_bytes;
    told.wire = options.wire;
    told.wire_format = options.wire_format;
    gradients_ = std::make_unique<internal::TrainedGradients>(
        communicator, dense, rows, told, options.backward_passes_per_step, options.reuse_memory);
  }

  // The inner optimizer's step, when all gradients hold their results.
  void Update() {
    gradients_->BeginRound();
    groups_.ShareOptions(param_groups_, inner_->param_groups());
    if (agreement_ != nullptr) scaled_->Agree(*agreement_);
    if (deltas_ != nullptr) deltas_->Begin();
    inner_->step();
    if (deltas_ != nullptr) deltas_->End();
    if (!buffers_.empty()) {
      const std::vector<int>& ranks = gradients_->participants();
      internal::BroadcastAll(*buffer_communicator_, buffers_, ranks.empty() ? 0 : ranks[0]);
    }
    ++steps_;
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

  void Register(size_t group, size_t k, internal::NamedTensors& shared) {
    const Tensor& parameter = param_groups_[group].params()[k];
    if (!parameter.requires_grad()) return;
    for (const auto& named : shared)
      if (named.second.is_same(parameter)) return;  // tied
    const std::string name = groups_.NameOf(parameter, group, k), what = "parameter '" + name + "'";
    internal::CheckedDevice(what, parameter);
    if (!at::isFloatingType(parameter.scalar_type())) {
      internal::Refuse(
          ErrorCode::kInvalidArgument, what, " has elements of type ", parameter.scalar_type(),
          "; expected f16, bf16, f32 or f64");
    }
    internal::CheckedDType(what, parameter);
    shared.emplace_back(name, parameter);
  }

  std::shared_ptr<::torch::optim::Optimizer> inner_;
  DistributedOptions options_;
  internal::Groups groups_;
  Communicator communicator_;  // for Join
  std::unique_ptr<internal::TrainedGradients> gradients_;
  std::unique_ptr<internal::DeltaReduction> deltas_;  // null: gradients are reduced
  LossScaleOptimizer* scaled_ = nullptr;              // the inner optimizer, if `agreement_` is set
  std::unique_ptr<Communicator> agreement_;           // of a loss scale with `deltas_`
  internal::NamedTensors buffers_;                    // to be synchronised
  std::unique_ptr<Communicator> buffer_communicator_;
  int64_t steps_ = 0;
};

}  // namespace torch
}  // namespace dtrun

#endif
