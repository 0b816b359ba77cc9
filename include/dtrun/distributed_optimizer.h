#ifndef DTRUN_DISTRIBUTED_OPTIMIZER_H_
#define DTRUN_DISTRIBUTED_OPTIMIZER_H_

#include <dtrun/communicator.h>
#include <dtrun/distributed_options.h>
#include <dtrun/error.h>
#include <dtrun/gradient_checks.h>
#include <dtrun/gradient_clipping.h>
#include <dtrun/gradient_reducer.h>
#include <dtrun/optimizer.h>
#include <dtrun/state_broadcast.h>
#include <dtrun/types.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtrun {

/// Wraps an optimizer so that each step uses the gradients of all ranks: they are reduced in
/// buckets while the backward pass still runs, and `Step()` waits for them before the inner step.
/// No negotiation, no cycle; no copy of gradients that live in its block.
///
///   optimizer.MarkReady(i)   optional: as soon as the gradient of parameter i is complete
///   optimizer.Step()         reduces what was not marked, waits, and lets the inner optimizer step
///
/// Parameters without gradient memory get it here, in a block that every rank of the host maps. Not
/// thread-safe. The inner optimizer outlives it and keeps the gradient memory it gave; use it no
/// more after this object is gone.
class DistributedOptimizer : public Optimizer {
 public:
  /// Collective: all ranks wrap optimizers of the same parameters.
  DistributedOptimizer(
      Communicator& communicator, Optimizer& inner, DistributedOptions options = {})
      : communicator_(communicator.Duplicate()),
        inner_(inner),
        options_(std::move(options)),
        reduced_(detail::ReducedOf(inner.parameters(), options_)),
        reducer_(
            communicator_, GradientsOf(),
            detail::ReducerOptionsOf(communicator_.size(), options_)) {
    detail::CheckOptions(options_, inner_.parameters(), reduced_);
    detail::CheckSameText(communicator_, "options of the optimizer", detail::TextOf(options_));
    std::vector<Parameter>& parameters = inner_.parameters();
    place_.assign(parameters.size(), kLocal);
    for (size_t place = 0; place < reduced_.size(); ++place) {
      place_[reduced_[place]] = place;
      parameters[reduced_[place]].gradient = reducer_.gradient(place);
    }
    for (size_t i = 0; i < parameters.size(); ++i)
      if (place_[i] == kLocal && parameters[i].gradient.data == nullptr) GiveMemory(parameters[i]);
    marks_.assign(parameters.size(), 0);
  }

  /// Gradient `i` is complete in this pass; in the last pass of a step its reduction may start, and
  /// it must not be touched before `Step()` or `Synchronize()`. Marked more often than there are
  /// passes, it is kInvalidArgument.
  void MarkReady(size_t i) {
    if (no_sync_ > 0) return;
    if (i >= marks_.size())
      throw Error(
          ErrorCode::kInvalidArgument, "parameter " + std::to_string(i) +
                                           " does not exist; the optimizer has " +
                                           std::to_string(marks_.size()));
    if (synchronized_ || marks_[i] >= options_.backward_passes_per_step) ThrowMarkedTooOften(i);
    if (++marks_[i] == options_.backward_passes_per_step) Mark(i);
  }

  /// Reduces what was not marked, and returns when every gradient holds the result, before the step
  /// that would otherwise do it: for a trainer that looks at reduced gradients or changes them.
  /// Nothing, the second time and under NoSync().
  void Synchronize() {
    if (synchronized_ || no_sync_ > 0) return;
    for (size_t i = 0; i < marks_.size(); ++i)
      if (marks_[i] < options_.backward_passes_per_step) Mark(i);
    if (ChecksNow())
      detail::CheckFinite(
          communicator_, inner_.parameters(), std::exchange(first_non_finite_, {}), ThisStep());
    reducer_.Wait();
    if (options_.max_gradient_norm > 0)
      norm_ = detail::ClipByNorm(inner_.parameters(), reduced_, options_.max_gradient_norm);
    synchronized_ = true;
  }

  /// Under NoSync() the inner optimizer steps with what this rank has.
  void Step() override {
    Synchronize();
    inner_.Step();
    if (no_sync_ > 0) return;
    if (ChecksNow())
      detail::CheckSameValues(communicator_, inner_.parameters(), reduced_, ThisStep());
    marks_.assign(marks_.size(), 0);
    synchronized_ = false;
    ++steps_;
  }

  /// Sets all gradients to zero, for the next step's backward passes to add to. Gradients that were
  /// marked and not stepped with are kInvalidArgument: peers may write them.
  void ZeroGradients() {
    if (!synchronized_ && std::any_of(marks_.begin(), marks_.end(), [this](int marks) {
          return marks >= options_.backward_passes_per_step;
        }))
      throw Error(
          ErrorCode::kInvalidArgument,
          "ZeroGradients() between the last backward pass and Step(): gradients are being reduced; "
          "call Step() or Synchronize() first");
    for (Parameter& parameter : inner_.parameters())
      if (parameter.gradient.count > 0)
        std::memset(parameter.gradient.data, 0, parameter.gradient.bytes());
  }

  /// While it lives, gradients are left as they are on this rank: a pass whose gradients are only
  /// added up is not counted. All ranks use it alike. Ends before the optimizer does.
  class [[nodiscard]] NoSyncScope {
   public:
    explicit NoSyncScope(int& scopes) : scopes_(&scopes) { ++*scopes_; }
    NoSyncScope(NoSyncScope&& other) noexcept : scopes_(std::exchange(other.scopes_, nullptr)) {}
    NoSyncScope& operator=(NoSyncScope&&) = delete;
    ~NoSyncScope() {
      if (scopes_ != nullptr) --*scopes_;
    }

   private:
    int* scopes_;
  };
  NoSyncScope NoSync() { return NoSyncScope(no_sync_); }

  /// The norm of the reduced gradients of the last step, before they were clipped; none without
  /// `max_gradient_norm`.
  std::optional<double> gradient_norm() const { return norm_; }

  /// Where the time of the steps went on this rank: see <dtrun/statistics.h>.
  ReducerStatistics statistics() const { return reducer_.statistics(); }

  std::vector<Parameter>& parameters() override { return inner_.parameters(); }
  std::vector<NamedBuffer> state() override { return inner_.state(); }

 private:
  static constexpr size_t kLocal = static_cast<size_t>(-1);

  std::vector<Gradient> GradientsOf() {
    std::vector<Gradient> gradients;
    for (const size_t i : reduced_) {
      const Parameter& parameter = inner_.parameters()[i];
      Buffer gradient = parameter.gradient;
      if (gradient.data == nullptr)
        gradient = Buffer(nullptr, parameter.value.count, parameter.value.dtype);
      gradients.push_back({parameter.name, gradient});
    }
    return gradients;
  }

  void GiveMemory(Parameter& parameter) {
    own_gradients_.emplace_back((parameter.value.bytes() + 7) / 8);
    parameter.gradient =
        Buffer(own_gradients_.back().data(), parameter.value.count, parameter.value.dtype);
  }

  // Its last pass is over.
  void Mark(size_t i) {
    marks_[i] = options_.backward_passes_per_step;
    if (ChecksNow() && !first_non_finite_ && detail::HasNonFinite(inner_.parameters()[i].gradient))
      first_non_finite_ = i;
    if (place_[i] != kLocal) reducer_.MarkReady(place_[i]);
  }

  [[noreturn]] void ThrowMarkedTooOften(size_t i) const {
    const int passes = options_.backward_passes_per_step;
    throw Error(
        ErrorCode::kInvalidArgument,
        "the gradient of '" + inner_.parameters()[i].name + "' was marked ready more than " +
            (passes == 1 ? "once" : std::to_string(passes) + " times") +
            " since the last step; call Step() before, set backward_passes_per_step to the passes "
            "of "
            "a step, or make further passes under NoSync()");
  }

  bool ChecksNow() const { return options_.check_every > 0 && steps_ % options_.check_every == 0; }
  std::string ThisStep() const { return " in step " + std::to_string(steps_); }

  Communicator communicator_;  // of the checks
  Optimizer& inner_;
  DistributedOptions options_;
  std::vector<size_t> reduced_;  // parameters, in the reducer's order
  GradientReducer reducer_;
  std::vector<size_t> place_;                         // in the reducer, by parameter; or kLocal
  std::vector<std::vector<uint64_t>> own_gradients_;  // of local parameters that had none
  int64_t steps_ = 0;
  int no_sync_ = 0;  // scopes

  // Of this step.
  std::vector<int> marks_;  // passes, by parameter
  bool synchronized_ = false;
  std::optional<size_t> first_non_finite_ = std::nullopt;  // parameter
  std::optional<double> norm_ = std::nullopt;
};

}  // namespace dtrun

#endif
