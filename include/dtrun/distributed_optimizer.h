#ifndef DTRUN_DISTRIBUTED_OPTIMIZER_H_
#define DTRUN_DISTRIBUTED_OPTIMIZER_H_

#include <dtrun/communicator.h>
#include <dtrun/detail/backward_marks.h>
#include <dtrun/detail/delta_reduction.h>
#include <dtrun/detail/device.h>
#include <dtrun/detail/distributed_options.h>
#include <dtrun/detail/gradient_checks.h>
#include <dtrun/detail/step_gradients.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/state_broadcast.h>
#include <dtrun/types.h>

#include <cstdint>
#include <functional>
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
/// With ReduceOp::kAdasum it is not the gradients that meet but the steps of the ranks, after each
/// has made its own: see DistributedOptions::op.
///
/// Parameters without gradient memory get it here, in a block that every rank of the host maps.
/// Parameters with the same value memory are tied: they have one gradient, which is reduced when
/// all of them are marked. Not thread-safe. The inner optimizer outlives it and keeps the gradient
/// memory it gave; use it no more after this object is gone.
class DistributedOptimizer : public Optimizer {
 public:
  /// Collective: all ranks wrap optimizers of the same parameters. Every parameter has a name of
  /// its own.
  DistributedOptimizer(
      Communicator& communicator, Optimizer& inner, DistributedOptions options = {})
      : communicator_(communicator.Duplicate()),
        inner_(inner),
        options_(Agreed(communicator_, inner.parameters(), std::move(options))),
        gradients_(communicator_, inner, options_) {
    if (detail::CombinesDeltas(options_))
      deltas_.emplace(communicator_, inner.parameters(), FirstOfShared());
  }

  DistributedOptimizer(const DistributedOptimizer&) = delete;
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  /// Gradient `i` is complete in this pass; in the last pass of a step its reduction may start, and
  /// it must not be touched before `Step()` or `Synchronize()`. Marked more often than there are
  /// passes, it is kInvalidArgument.
  void MarkReady(size_t i) {
    if (BeginMark(i)) gradients_.Mark(i, true);
  }

  /// This rank has no gradient `i` in this pass. A parameter that no rank has used in a step is not
  /// updated (`Parameter::has_gradient`).
  void MarkUnused(size_t i) {
    if (BeginMark(i)) gradients_.Mark(i, false);
  }

  /// Gradient `i` of this pass is `row_count` rows, in any order, also several times the same;
  /// `values` are (row_count, row_length), and copied. The rows of all ranks are gathered in
  /// `Step()`, those that are the same added up, and averaged like other gradients; with
  /// `sparse_as_dense` they are added to the gradient instead. Errors: kInvalidArgument (a row that
  /// does not exist, a wrong count or dtype, no `row_length`); kMismatch, from Step() on all ranks,
  /// if one has called MarkReady(i) instead.
  void MarkRows(size_t i, const int64_t* rows, uint64_t row_count, const Buffer& values) {
    const bool counts = BeginMark(i);
    gradients_.MarkRows(i, rows, row_count, values, counts);
  }

  /// Reduces what was not marked, and returns when every gradient holds the result, before the step
  /// that would otherwise do it: for a trainer that looks at reduced gradients or changes them.
  /// Nothing, the second time and under NoSync(). Where earlier steps had marks, a step without any
  /// is kInvalidArgument: its backward pass is missing.
  void Synchronize() {
    if (synchronized_ || no_sync_ > 0) return;
    if (!is_away_) CheckBackward();
    gradients_.Begin(ChecksNow());
    gradients_.EndMarks(is_away_);
    if (ChecksNow())
      detail::CheckFinite(
          communicator_, inner_.parameters(), gradients_.TakeNonFinite(), ThisStep());
    gradients_.Wait(ThisStep());
    if (ChecksNow()) gradients_.CheckResults(ThisStep());
    if (options_.max_gradient_norm > 0 && gradients_.participants() > 0)
      norm_ = detail::ClipByNorm(gradients_.Results(), options_.max_gradient_norm);
    synchronized_ = true;
  }

  /// Under NoSync() the inner optimizer steps with what this rank has.
  void Step() override {
    Synchronize();
    if (!synchronized_) gradients_.TakeOwn();
    if (deltas_ && no_sync_ == 0)
      StepTogether();
    else
      inner_.Step();
    if (no_sync_ > 0) return gradients_.ForgetRows();
    if (ChecksNow())
      detail::CheckSameValues(
          communicator_, inner_.parameters(), deltas_ ? deltas_->which() : gradients_.shared(),
          ThisStep());
    EndStep();
    ++steps_;
  }

  /// For uneven data: this rank has no more. It takes part in the steps of the others without
  /// gradients, until all ranks have joined; returns the rank that joined last (of those that came
  /// before the same step, the highest). An average divides by the ranks that have data. The inner
  /// optimizer steps here too, with what the others have found, so that parameters and its state
  /// stay the same on all ranks (not with kAdasum: what the others have changed comes to the
  /// parameters here without a step); what the trainer does itself in each step, such as setting a
  /// learning rate, belongs into `before_step`. What was marked since the last step is not lost: it
  /// makes a step of its own first. Steps in which all ranks have data cost nothing more.
  int Join(const std::function<void()>& before_step = {}) {
    if (no_sync_ > 0)
      throw Error(ErrorCode::kInvalidArgument, "Join() under NoSync(); end its scope before");
    if (backward_seen_ || synchronized_) Step();
    int64_t joined = steps_;
    is_away_ = true;
    for (Synchronize(); gradients_.participants() > 0; Synchronize()) {
      if (before_step) before_step();
      Step();
    }
    is_away_ = false;
    EndStep();
    std::vector<int64_t> all(static_cast<size_t>(communicator_.size()));
    communicator_.AllGather(Buffer(&joined, 1), Buffer(all.data(), all.size()));
    int last = 0;
    for (int rank = 0; rank < communicator_.size(); ++rank)
      if (all[static_cast<size_t>(rank)] >= all[static_cast<size_t>(last)]) last = rank;
    return last;
  }

  /// Before the next step's first mark: parameter `i` has no gradient from now on, and is not
  /// updated; and the reverse. All ranks do so before the same step, else that step is kMismatch
  /// and names parameter and ranks. What was frozen when the optimizer was wrapped is not reduced,
  /// and has no gradient memory, before it is thawed; what is frozen later keeps its place in a
  /// bucket.
  void Freeze(size_t i) {
    CheckBetweenSteps(i, "Freeze");
    inner_.parameters()[i].requires_gradient = false;
  }
  void Thaw(size_t i) {
    CheckBetweenSteps(i, "Thaw");
    gradients_.Thaw(i);
  }

  /// Sets all gradients to zero, for the next step's backward passes to add to. Gradients that were
  /// marked and not stepped with are kInvalidArgument: peers may write them.
  void ZeroGradients() {
    if (!synchronized_ && gradients_.marks().any_complete())
      throw Error(
          ErrorCode::kInvalidArgument,
          "ZeroGradients() between the last backward pass and Step(): gradients are being reduced; "
          "call Step() or Synchronize() first");
    for (Parameter& parameter : inner_.parameters())
      if (parameter.gradient.data != nullptr) Clear(parameter.gradient);
    gradients_.ForgetRows();
  }

  /// While it lives, gradients are left as they are on this rank: a pass whose gradients are only
  /// added up is not counted. All ranks use it alike. Ends before the optimizer does.
  detail::CountedScope NoSync() { return detail::CountedScope(no_sync_); }

  /// Backward passes since the last step, with that which is going on.
  int backward_passes() const { return gradients_.marks().passes(); }

  /// The norm of the reduced gradients of the last step, before they were clipped; none without
  /// `max_gradient_norm`.
  std::optional<double> gradient_norm() const { return norm_; }

  /// Where the time of the steps went on this rank: see <dtrun/detail/statistics.h>.
  ReducerStatistics statistics() const { return gradients_.statistics(); }

  std::vector<Parameter>& parameters() override { return inner_.parameters(); }
  std::vector<NamedBuffer> state() override { return inner_.state(); }
  bool TakesRows() const override { return inner_.TakesRows(); }

 private:
  // Returns the options if all ranks have the same ones, and all of them can be.
  static DistributedOptions Agreed(
      Communicator& communicator, const std::vector<Parameter>& parameters,
      DistributedOptions options) {
    detail::CheckNames(parameters);
    detail::CheckRows(parameters);
    detail::CheckOptions(options, parameters, detail::SharedOf(parameters, options));
    if (detail::CombinesDeltas(options)) detail::CheckAdasumRanks(communicator.size());
    detail::CheckSameText(
        communicator, "options of the optimizer", detail::TextOf(options, parameters));
    return options;
  }

  // Of tied parameters, which have one value, the first.
  std::vector<size_t> FirstOfShared() const {
    const std::vector<size_t> first = detail::FirstOfTied(inner_.parameters());
    std::vector<size_t> shared;
    for (const size_t i : detail::SharedOf(inner_.parameters(), options_))
      if (first[i] == i) shared.push_back(i);
    return shared;
  }

  // Each rank by itself, and then what that has changed, together. Who is away changes nothing.
  void StepTogether() {
    deltas_->Begin();
    if (!is_away_) inner_.Step();
    deltas_->End();
  }

  void CheckIndex(size_t i) const {
    if (i < gradients_.size()) return;
    throw Error(
        ErrorCode::kInvalidArgument, "parameter " + std::to_string(i) +
                                         " does not exist; the optimizer has " +
                                         std::to_string(gradients_.size()));
  }

  // Whether a mark of parameter `i` is one of a pass that is counted.
  bool BeginMark(size_t i) {
    CheckIndex(i);
    backward_seen_ = true;
    if (no_sync_ == 0)
      gradients_.Begin(ChecksNow());
    else
      gradients_.Look();
    return no_sync_ == 0;
  }

  void CheckBackward() const {
    if (backward_seen_ || !marked_before_) return;
    throw Error(
        ErrorCode::kInvalidArgument,
        "Step() without a backward pass: no gradient was marked since the last step, while earlier "
        "steps had marks; call MarkReady() for what backward has computed (MarkUnused() for what "
        "it has not), or Join() when this rank has no more data");
  }

  void CheckBetweenSteps(size_t i, const std::string& call) const {
    CheckIndex(i);
    if (!gradients_.begun()) return;
    throw Error(
        ErrorCode::kInvalidArgument, call + "() of '" + inner_.parameters()[i].name +
                                         "' in the middle of a step; call it after Step(), before "
                                         "gradients are marked");
  }

  void EndStep() {
    gradients_.End();
    marked_before_ = marked_before_ || backward_seen_;
    backward_seen_ = synchronized_ = false;
  }

  bool ChecksNow() const { return options_.check_every > 0 && steps_ % options_.check_every == 0; }
  std::string ThisStep() const { return " in step " + std::to_string(steps_); }

  Communicator communicator_;  // of everything but the reducers
  Optimizer& inner_;
  DistributedOptions options_;
  detail::StepGradients gradients_;
  std::optional<detail::DeltaReduction> deltas_ = std::nullopt;  // none: gradients are reduced
  int64_t steps_ = 0;
  int no_sync_ = 0;             // scopes
  bool is_away_ = false;        // it has joined
  bool marked_before_ = false;  // in an earlier step

  // Of this step.
  bool backward_seen_ = false;
  bool synchronized_ = false;
  std::optional<double> norm_ = std::nullopt;
};

}  // namespace dtrun

#endif
