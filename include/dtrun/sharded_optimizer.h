#ifndef DTRUN_SHARDED_OPTIMIZER_H_
#define DTRUN_SHARDED_OPTIMIZER_H_

#include <dtrun/c.h>
#include <dtrun/communicator.h>
#include <dtrun/detail/block_device.h>
#include <dtrun/detail/device.h>
#include <dtrun/detail/gradient_checks.h>
#include <dtrun/detail/statistics.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/sliceable_optimizer.h>
#include <dtrun/types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtrun {

namespace detail {
class OptimizerShards;
}

/// The options of a ShardedOptimizer. All ranks pass the same options, otherwise kMismatch.
struct ShardedOptions {
  /// kAverage, or kSum if the loss is already divided by the global batch.
  ReduceOp op = ReduceOp::kAverage;
  /// The size of a bucket: between hosts, a bucket's reduction starts when all of the bucket is
  /// complete. 0: the option `bucket_bytes`.
  uint64_t bucket_bytes = 0;
  /// The largest norm of all reduced gradients together: larger gradients are clipped. 0: no
  /// clipping. The gradients are f32 or f64. With clipping, the step takes two passes over memory.
  double max_gradient_norm = 0;
  /// True: the ranks of a host read the same parameters, in shared memory. On several hosts, the
  /// ranks of each host divide the update and the state of their host's copy among themselves. The
  /// pages of the original values go back to the system. Only for parameters in host memory.
  bool one_copy_per_host = false;
  /// True: `Step()` returns while the weights are still on their way. The next forward pass waits
  /// for each layer with `WaitForParameter(i)`, or for all layers with `WaitForParameters()`. It
  /// takes effect only between hosts. Within one host, the weights have arrived when `Step()`
  /// returns.
  bool overlap_forward = false;
};

/// A named piece of state that owns its memory.
struct StateBuffer {
  std::string name;              ///< as in the inner optimizer's `state()`
  DType dtype = DType::kF32;     ///< the type of an element
  uint64_t count = 0;            ///< the number of elements
  std::vector<uint64_t> memory;  ///< count elements, in whole words

  /// A view of `memory`, as `count` elements.
  Buffer buffer() { return Buffer(memory.data(), count, dtype); }
};

/// Divides the update of the parameters between the ranks. Each rank updates a share from gradients
/// that are reduced over all ranks, and all ranks get the result: ZeRO stage 1 (Rajbhandari et al.,
/// arXiv:1910.02054). Each rank keeps only the optimizer state of its share. On one host,
/// reduction, update and exchange are one pass over memory.
///
///   optimizer.MarkReady(i)   optional: as soon as the gradient of parameter i is complete
///   optimizer.Step()         reduces, updates, and returns when all weights are there
///
/// If the parameters lie on a GPU, all on the same GPU and in one stream, so do gradients, values
/// and state. The inner optimizer then updates slices on the GPU.
///
/// This object gives the gradients their memory, and moves the values into its own memory. Its
/// destructor copies the values back to their original place. Within one host, no gradient is
/// reduced before Step(). Between hosts, buckets are reduced while backward still runs. No weight
/// changes before Step(). Not thread-safe. The inner optimizer outlives this object.
///
/// A parameter that is frozen (`requires_gradient` is false) at construction is not updated, its
/// state is not changed, and it needs no mark. All ranks freeze the same parameters, otherwise
/// kMismatch. If a rank freezes or thaws a parameter later, its next Step() throws
/// kInvalidArgument.
class ShardedOptimizer {
 public:
  /// Collective: all ranks wrap optimizers of the same parameters. All ranks start from rank 0's
  /// values. kInvalidArgument: the optimizer is not a SliceableOptimizer, a parameter has no unique
  /// name, or a gradient differs from its value in count or dtype. Parameters that share memory
  /// (tied weights) are also kInvalidArgument.
  ShardedOptimizer(Communicator& communicator, Optimizer& inner, ShardedOptions options = {})
      : communicator_(communicator.Duplicate()),
        inner_(Sliceable(inner)),
        options_(options),
        slots_(inner_.slots()),
        frozen_(FrozenNow()) {
    CheckParameters();
    CheckOptions();
    detail::CheckSameText(communicator_, "options of the sharded optimizer", OptionsText());
    handle_ = Create();
    CheckSameFrozen();
    for (size_t i = 0; i < parameters().size(); ++i) {
      Parameter& parameter = parameters()[i];
      dtrun_buffer gradient{}, value{};
      detail::Check(dtrun_shards_gradient(handle_.get(), i, &gradient));
      detail::Check(dtrun_shards_value(handle_.get(), i, &value));
      values_before_.push_back(parameter.value);
      parameter.gradient = detail::FromC(gradient);
      parameter.value = detail::FromC(value);
    }
    marked_.assign(parameters().size(), false);
  }

  ~ShardedOptimizer() {
    WaitQuietly();
    for (size_t i = 0; i < values_before_.size(); ++i) {
      Parameter& parameter = parameters()[i];
      const Buffer& before = values_before_[i];
      // An error has nowhere to go: the value is lost, and so is its GPU.
      if (before.count > 0)
        dtrun_error_destroy(dtrun_copy(detail::ToC(parameter.value), detail::ToC(before)));
      parameter.value = before;
      parameter.gradient = Buffer(nullptr, before.count, before.dtype);
    }
  }
  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  /// The parameters of the inner optimizer. Their values and gradients lie in memory of this
  /// object.
  std::vector<Parameter>& parameters() { return inner_.parameters(); }

  /// Marks gradient `i` as complete. Do not touch it before `Step()`. kInvalidArgument: it was
  /// already marked since the last step. For a frozen parameter, the mark says only that there was
  /// a backward pass.
  void MarkReady(size_t i) {
    if (i < marked_.size() && marked_[i])
      throw Error(
          ErrorCode::kInvalidArgument,
          "the gradient of '" + parameters()[i].name +
              "' was marked ready more than once since the last step; call Step() before the next "
              "backward pass");
    if (i >= marked_.size() || !frozen_[i])
      detail::Check(dtrun_shards_mark_ready(handle_.get(), i));
    if (!backward_seen_) MarkFrozen();
    marked_[i] = backward_seen_ = true;
  }

  /// Reduces all gradients, marked or not, updates the parameters, and returns when all weights are
  /// there. Collective. If earlier steps had marks and this step has none, its backward pass is
  /// missing: Step throws kInvalidArgument before it does anything. If StepSlice throws, Step
  /// throws that exception after the step has ended on all ranks; the weights are then unusable.
  void Step() {
    CheckFrozen();
    CheckBackward();
    if (before_step_) before_step_();
    const double factor = PrepareNorms();
    inner_.BeginStep();
    Update update{inner_, frozen_, nullptr};
    const std::optional<MomentumRule> rule = OnGpu() ? std::nullopt : inner_.momentum_rule();
    if (rule) {
      StepWithMomentum(factor, *rule);
    } else {
      detail::Check(dtrun_shards_step(handle_.get(), factor, &UpdateSlice, &update));
    }
    marked_before_ = marked_before_ || backward_seen_;
    backward_seen_ = false;
    marked_.assign(marked_.size(), false);
    if (!options_.overlap_forward) WaitForParameters();
    if (update.error) std::rethrow_exception(update.error);
  }

  /// Returns when parameter `i` holds its value of the last step.
  void WaitForParameter(size_t i) { detail::Check(dtrun_shards_wait_for(handle_.get(), i)); }
  /// Returns when all parameters hold their values of the last step.
  void WaitForParameters() {
    for (size_t i = 0; i < parameters().size(); ++i) WaitForParameter(i);
  }

  /// Sets all gradients to zero, for the next step's backward passes to add to. kInvalidArgument: a
  /// gradient was marked since the last step, so peers may read the gradients.
  void ZeroGradients() {
    if (backward_seen_)
      throw Error(
          ErrorCode::kInvalidArgument,
          "ZeroGradients() between MarkReady() and Step(): gradients are being reduced; call "
          "Step() first");
    for (Parameter& parameter : parameters()) Clear(parameter.gradient);
  }

  /// The norm of the last step's reduced gradients before clipping, without the loss scale. nullopt
  /// without `max_gradient_norm`.
  std::optional<double> gradient_norm() const { return norm_; }

  /// The time that steps took on this rank. `late_by_rank_s` is empty. With one copy per host on
  /// several hosts, `late_s` has only the waits between hosts.
  ReducerStatistics statistics() const {
    dtrun_step_statistics last = dtrun_new_step_statistics(), total = dtrun_new_step_statistics();
    detail::Check(dtrun_shards_statistics(handle_.get(), &last, &total));
    return {detail::FromC(last), detail::FromC(total), {}};
  }

  /// Collective: returns the whole state, with the names of the inner optimizer's `state()`. With a
  /// `root`, only that rank gets the state; the result of other ranks is empty. Without a `root`,
  /// all ranks get the state.
  std::vector<StateBuffer> ExportState(std::optional<int> root = std::nullopt) {
    const bool mine = !root || *root == communicator_.rank();
    std::vector<StateBuffer> state;
    for (size_t s = 0; s < slots_.size(); ++s) {
      for (size_t i = 0; i < parameters().size(); ++i) {
        StateBuffer buffer = Room(s, i);
        if (!mine) buffer.memory.clear();
        detail::Check(dtrun_shards_gather_state(
            handle_.get(), s, i, root ? *root : -1, buffer.memory.data()));
        if (mine) state.push_back(std::move(buffer));
      }
    }
    if (!mine) return {};
    for (const NamedBuffer& scalar : inner_.scalars()) {
      StateBuffer buffer{scalar.name, scalar.buffer.dtype, scalar.buffer.count, {}};
      buffer.memory.resize(Words(scalar.buffer.bytes()));
      if (scalar.buffer.count > 0)
        std::memcpy(buffer.memory.data(), scalar.buffer.data, scalar.buffer.bytes());
      state.push_back(std::move(buffer));
    }
    return state;
  }

  /// Takes the whole state of an optimizer of the same parameters. The state may come from any
  /// number of shards, or from an optimizer without shards (its `state()`). Every rank passes the
  /// whole state. kInvalidArgument: a name is missing or unknown, or has another size. Then no
  /// state is changed.
  void ImportState(const std::vector<NamedBuffer>& state) {
    std::vector<NamedBuffer> expected;
    for (size_t s = 0; s < slots_.size(); ++s)
      for (size_t i = 0; i < parameters().size(); ++i)
        expected.push_back(
            {SliceableOptimizer::StateName(slots_[s], parameters()[i]),
             Buffer(
                 nullptr, parameters()[i].value.count,
                 SliceableOptimizer::SlotDType(slots_[s], parameters()[i]))});
    for (const NamedBuffer& scalar : inner_.scalars()) expected.push_back(scalar);
    std::map<std::string, const NamedBuffer*> by_name;
    for (const NamedBuffer& each : state) by_name[each.name] = &each;
    std::vector<const NamedBuffer*> found;
    for (const NamedBuffer& each : expected) found.push_back(&Find(by_name, each));
    if (state.size() > expected.size()) ThrowUnknown(state, expected);
    size_t next = 0;
    for (size_t s = 0; s < slots_.size(); ++s)
      for (size_t i = 0; i < parameters().size(); ++i)
        detail::Check(dtrun_shards_set_state(
            handle_.get(), s, i, detail::HostView(found[next++]->buffer).buffer().data));
    for (const NamedBuffer& scalar : inner_.scalars()) {
      const Buffer& from = found[next++]->buffer;
      if (from.count > 0) std::memcpy(scalar.buffer.data, from.data, from.bytes());
    }
  }
  /// The same for state that owns its memory, for example from ExportState.
  void ImportState(std::vector<StateBuffer>& state) {
    std::vector<NamedBuffer> views;
    for (StateBuffer& buffer : state) views.push_back({buffer.name, buffer.buffer()});
    ImportState(views);
  }

 private:
  friend class detail::OptimizerShards;
  using Handle =
      std::unique_ptr<dtrun_shards, detail::Destroyer<dtrun_shards, dtrun_shards_destroy>>;

  // Calls `visit` with each dtrun_parameter_slice of this rank's share.
  template <typename Visit>
  void ForOwnSlices(const Visit& visit) {
    struct Call {
      const Visit& visit;
      std::exception_ptr error;
    } call{visit, nullptr};
    const auto each = [](void* argument, const dtrun_parameter_slice* slice) {
      Call& called = *static_cast<Call*>(argument);
      try {
        if (!called.error) called.visit(*slice);
      } catch (...) {
        called.error = std::current_exception();
      }
    };
    detail::Check(dtrun_shards_own_slices(handle_.get(), each, &call));
    if (call.error) std::rethrow_exception(call.error);
  }

  // An exception must neither pass through the library nor leave the other ranks waiting.
  struct Update {
    SliceableOptimizer& inner;
    const std::vector<bool>& frozen;
    std::exception_ptr error;
  };
  static void UpdateSlice(void* argument, const dtrun_parameter_slice* slice) {
    Update& update = *static_cast<Update*>(argument);
    if (update.error || update.frozen[static_cast<size_t>(slice->parameter)]) return;
    try {
      update.inner.StepSlice(
          {static_cast<size_t>(slice->parameter), slice->first, slice->count, slice->gradient,
           slice->value, slice->slots});
    } catch (...) {
      update.error = std::current_exception();
    }
  }

  void StepWithMomentum(double factor, const MomentumRule& rule) {
    const std::vector<uint8_t> frozen(frozen_.begin(), frozen_.end());
    dtrun_momentum_step step = dtrun_default_momentum_step();
    step.keep = rule.keep;
    step.take = rule.take;
    step.decay = rule.decay;
    step.by_momentum = rule.by_momentum;
    step.by_gradient = rule.by_gradient;
    step.frozen = frozen.data();
    detail::Check(dtrun_shards_step_momentum(handle_.get(), factor, &step));
  }

  static SliceableOptimizer& Sliceable(Optimizer& inner) {
    if (SliceableOptimizer* const sliceable = AsSliceable(inner)) return *sliceable;
    throw Error(
        ErrorCode::kInvalidArgument,
        "ShardedOptimizer: the update of the inner optimizer cannot be cut into slices; expected a "
        "SliceableOptimizer, or use DistributedOptimizer");
  }

  Handle Create() {
    std::vector<dtrun_sharded_parameter> list;
    for (const Parameter& parameter : parameters())
      list.push_back({parameter.name.c_str(), detail::ToC(parameter.value)});
    std::vector<int32_t> dtypes;
    for (const StateSlot& slot : slots_)
      dtypes.push_back(slot.dtype ? static_cast<int32_t>(*slot.dtype) : -1);
    dtrun_shards_options told = dtrun_default_shards_options();
    told.reduce_op = static_cast<int32_t>(options_.op);
    told.one_copy_per_host = options_.one_copy_per_host ? 1 : 0;
    told.bucket_bytes = options_.bucket_bytes;
    told.slot_count = dtypes.size();
    told.slot_dtypes = dtypes.data();
    dtrun_shards* shards = nullptr;
    detail::Check(
        dtrun_shards_create(communicator_.handle(), list.data(), list.size(), &told, &shards));
    return Handle(shards);
  }

  [[noreturn]] static void Refuse(const std::string& text) {
    throw Error(ErrorCode::kInvalidArgument, "ShardedOptimizer: " + text);
  }

  // For each parameter, the first parameter with the same memory. Rewrites the shared checks'
  // errors in the name of this class.
  std::vector<size_t> CheckList() const {
    try {
      detail::CheckNames(inner_.parameters());
      return detail::FirstOfTied(inner_.parameters());
    } catch (const Error& error) {
      const std::string text = error.what(), other = "DistributedOptimizer: ";
      Refuse(text.compare(0, other.size(), other) == 0 ? text.substr(other.size()) : text);
    }
  }

  void CheckParameters() const {
    const std::vector<size_t> first = CheckList();
    for (size_t i = 0; i < first.size(); ++i) {
      const Parameter& parameter = inner_.parameters()[i];
      if (first[i] != i)
        Refuse(
            "parameters '" + inner_.parameters()[first[i]].name + "' and '" + parameter.name +
            "' have the same memory (tied weights), and would come apart; use "
            "DistributedOptimizer");
      const Buffer &gradient = parameter.gradient, &value = parameter.value;
      if (gradient.data == nullptr) continue;
      if (gradient.count != value.count || gradient.dtype != value.dtype)
        Refuse(
            "the gradient of '" + parameter.name + "' is " + Describe(gradient) +
            " and its value " + Describe(value) + "; expected the same count and dtype");
    }
  }

  void CheckOptions() const {
    if (options_.op != ReduceOp::kAverage && options_.op != ReduceOp::kSum)
      Refuse(std::string("the reduce op is ") + NameOf(options_.op) + "; expected average or sum");
    if (!(options_.max_gradient_norm >= 0))
      Refuse(
          "max_gradient_norm is " + std::to_string(options_.max_gradient_norm) +
          "; expected 0 or more");
    if (options_.max_gradient_norm == 0 && !inner_.needs_norms()) return;
    for (const Parameter& parameter : inner_.parameters()) {
      const DType dtype = parameter.value.dtype;
      if (dtype != DType::kF32 && dtype != DType::kF64)
        Refuse(
            "norms are needed: parameter '" + parameter.name + "' is " + NameOf(dtype) +
            "; expected f32 or f64");
    }
  }

  // The options that the plan of the shards does not compare.
  std::string OptionsText() const {
    std::string text = "max_gradient_norm " + std::to_string(options_.max_gradient_norm) +
                       (inner_.needs_norms() ? ", with norms" : "") +
                       (options_.overlap_forward ? ", overlap_forward" : "") + ", state";
    for (const StateSlot& slot : slots_) text += " '" + slot.name + "'";
    return text + inner_.SharedSettings();
  }

  std::vector<bool> FrozenNow() const {
    std::vector<bool> frozen;
    for (const Parameter& parameter : inner_.parameters())
      frozen.push_back(!parameter.requires_gradient);
    return frozen;
  }

  // Collective. The ranks have already agreed on the list of parameters.
  void CheckSameFrozen() {
    const size_t count = frozen_.size();
    if (count == 0) return;
    std::vector<uint8_t> mine(frozen_.begin(), frozen_.end());
    std::vector<uint8_t> all(count * static_cast<size_t>(communicator_.size()));
    communicator_.AllGather(Buffer(mine.data(), count), Buffer(all.data(), all.size()));
    for (size_t i = 0; i < count; ++i) {
      std::vector<int> sides[2];
      for (int rank = 0; rank < communicator_.size(); ++rank)
        sides[all[static_cast<size_t>(rank) * count + i]].push_back(rank);
      if (sides[0].empty() || sides[1].empty()) continue;
      throw Error(
          ErrorCode::kMismatch, "ShardedOptimizer: parameter '" + inner_.parameters()[i].name +
                                    "' is frozen on " + detail::RankList(sides[1]) +
                                    " and not on " + detail::RankList(sides[0]) +
                                    "; expected the same requires_gradient on all ranks");
    }
  }

  void CheckFrozen() const {
    const std::vector<bool> now = FrozenNow();
    for (size_t i = 0; i < now.size(); ++i)
      if (now[i] != frozen_[i])
        Refuse(
            "parameter '" + inner_.parameters()[i].name + "' was " +
            (now[i] ? "frozen" : "thawed") +
            " after it was wrapped; set requires_gradient back and change it before wrapping, or "
            "use DistributedOptimizer");
  }

  void CheckBackward() const {
    if (!marked_before_ || backward_seen_) return;
    throw Error(
        ErrorCode::kInvalidArgument,
        "Step() without a backward pass: no gradient was marked since the last step, while earlier "
        "steps had marks; call MarkReady() for what backward has computed");
  }

  // Marks the frozen parameters, so that their buckets do not wait for them. It runs at the first
  // mark of a step: before that, gradients may still be set to zero.
  void MarkFrozen() {
    for (size_t i = 0; i < frozen_.size(); ++i)
      if (frozen_[i]) detail::Check(dtrun_shards_mark_ready(handle_.get(), i));
  }

  bool OnGpu() const {
    return !inner_.parameters().empty() && inner_.parameters()[0].value.device >= 0;
  }

  // Waits until peers no longer write the values. Stops at the first failed operation.
  void WaitQuietly() {
    for (size_t i = 0; i < values_before_.size(); ++i) {
      dtrun_error* const error = dtrun_shards_wait_for(handle_.get(), i);
      if (error == nullptr) continue;
      dtrun_error_destroy(error);
      return;
    }
  }

  // Passes the norms to the inner optimizer, and returns the factor of clipping.
  double PrepareNorms() {
    const double scale = inner_.loss_scale();
    const double most = options_.max_gradient_norm * scale;
    if (most == 0 && !inner_.needs_norms()) return 1;
    const size_t count = parameters().size();
    std::vector<double> gradients(count), values(count);
    detail::Check(dtrun_shards_squared_norms(
        handle_.get(), gradients.data(), inner_.needs_norms() ? values.data() : nullptr));
    for (size_t i = 0; i < count; ++i)
      if (frozen_[i]) gradients[i] = 0;
    double factor = 1;
    if (most > 0) {
      double squares = 0;
      for (const double each : gradients) squares += each;
      const double norm = std::sqrt(squares);
      norm_ = norm / scale;
      if (norm > most) factor = most / (norm + 1e-6 * scale);
    }
    if (!inner_.needs_norms()) return factor;
    std::vector<ParameterNorms> norms;
    for (size_t i = 0; i < count; ++i)
      norms.push_back({std::sqrt(gradients[i]) * factor, std::sqrt(values[i])});
    inner_.SetNorms(norms);
    return factor;
  }

  static size_t Words(uint64_t bytes) {
    return static_cast<size_t>((bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t));
  }

  StateBuffer Room(size_t slot, size_t i) {
    const Parameter& parameter = parameters()[i];
    StateBuffer room{
        SliceableOptimizer::StateName(slots_[slot], parameter),
        SliceableOptimizer::SlotDType(slots_[slot], parameter),
        parameter.value.count,
        {}};
    room.memory.resize(Words(room.count * SizeOf(room.dtype)));
    return room;
  }

  static std::string Describe(const Buffer& buffer) {
    return std::string(NameOf(buffer.dtype)) + "[" + std::to_string(buffer.count) + "]";
  }

  static const NamedBuffer& Find(
      const std::map<std::string, const NamedBuffer*>& state, const NamedBuffer& expected) {
    const auto found = state.find(expected.name);
    if (found == state.end())
      throw Error(
          ErrorCode::kInvalidArgument, "ImportState: state '" + expected.name + "' is missing");
    const NamedBuffer& each = *found->second;
    if (each.buffer.count == expected.buffer.count && each.buffer.dtype == expected.buffer.dtype)
      return each;
    throw Error(
        ErrorCode::kInvalidArgument, "ImportState: '" + each.name + "' is " +
                                         Describe(each.buffer) + "; expected " +
                                         Describe(expected.buffer));
  }

  [[noreturn]] static void ThrowUnknown(
      const std::vector<NamedBuffer>& state, const std::vector<NamedBuffer>& expected) {
    std::string name = state.back().name;
    for (const NamedBuffer& each : state)
      if (std::none_of(expected.begin(), expected.end(), [&](const NamedBuffer& known) {
            return known.name == each.name;
          }))
        name = each.name;
    throw Error(
        ErrorCode::kInvalidArgument,
        "ImportState: '" + name + "' is unknown to this optimizer, or listed more than once");
  }

  Communicator communicator_;
  SliceableOptimizer& inner_;
  ShardedOptions options_;
  std::vector<StateSlot> slots_;
  std::vector<bool> frozen_;  // by parameter, at construction
  Handle handle_;
  std::vector<Buffer> values_before_;
  std::vector<bool> marked_;    // by parameter, in this step
  bool backward_seen_ = false;  // a parameter was marked in this step
  bool marked_before_ = false;  // in an earlier step
  std::optional<double> norm_ = std::nullopt;
  std::function<void()> before_step_ = nullptr;  // Elastic waits for its copies
};

}  // namespace dtrun

#endif
