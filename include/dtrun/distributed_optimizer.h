#ifndef DTRUN_DISTRIBUTED_OPTIMIZER_H_
#define DTRUN_DISTRIBUTED_OPTIMIZER_H_

#include <dtrun/communicator.h>
#include <dtrun/detail/backward_marks.h>
#include <dtrun/detail/delta_reduction.h>
#include <dtrun/detail/device.h>
#include <dtrun/detail/distributed_options.h>
#include <dtrun/detail/gradient_checks.h>
#include <dtrun/detail/loss_scale_optimizer.h>
#include <dtrun/detail/step_gradients.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtrun {

/// Wraps an optimizer so that each step uses the gradients of all ranks. Gradients are reduced in
/// buckets while the backward pass still runs. `Step()` waits for them before the inner step. Ranks
/// do not negotiate. Gradients in its own block are not copied.
///
///   optimizer.MarkReady(i)   optional: as soon as the gradient of parameter i is complete
///   optimizer.Step()         reduces the gradients that were not marked, waits, steps
///
/// With ReduceOp::kAdasum, each rank steps with its own gradients, and the ranks then combine their
/// steps instead of their gradients: see DistributedOptions::op.
///
/// Parameters without gradient memory get it from here, in a block that every rank of the host
/// maps. Parameters with the same value memory are tied: they have one gradient, which is reduced
/// when all of them are marked. Not thread-safe. The inner optimizer outlives this object and keeps
/// the gradient memory from here. Do not use the inner optimizer after this object is destroyed.
class DistributedOptimizer : public Optimizer {
 public:
  /// Collective: all ranks wrap optimizers of the same parameters. Each parameter has a unique
  /// name.
  DistributedOptimizer(
      Communicator& communicator, Optimizer& inner, DistributedOptions options = {})
      : communicator_(communicator.Duplicate()),
        inner_(inner),
        options_(Agreed(communicator_, inner, std::move(options))),
        gradients_(communicator_, inner, options_) {
    if (detail::CombinesDeltas(options_))
      deltas_.emplace(communicator_, inner.parameters(), FirstOfShared());
  }

  DistributedOptimizer(const DistributedOptimizer&) = delete;
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  /// Marks gradient `i` as complete in this backward pass. In the last pass of a step its reduction
  /// may start: do not touch the gradient before `Step()` or `Synchronize()`. kInvalidArgument: it
  /// was marked more often than there are passes.
  void MarkReady(size_t i) {
    if (BeginMark(i)) gradients_.Mark(i, true);
  }

  /// Marks that this rank has no gradient `i` in this pass. If no rank uses a parameter in a step,
  /// the parameter is not updated (`Parameter::has_gradient`).
  void MarkUnused(size_t i) {
    if (BeginMark(i)) gradients_.Mark(i, false);
  }

  /// Gives gradient `i` of this pass as `row_count` rows, in any order, with repetitions allowed.
  /// `values` has the shape (row_count, row_length) and is copied. `Step()` gathers the rows of all
  /// ranks, adds up equal rows, and averages them as other gradients. With `sparse_as_dense`, the
  /// rows are added to the gradient instead.
  ///
  /// Errors: kInvalidArgument (a row that does not exist, a wrong count or dtype, no `row_length`).
  /// kMismatch, from Step() on all ranks, if a rank has called MarkReady(i) instead.
  void MarkRows(size_t i, const int64_t* rows, uint64_t row_count, const Buffer& values) {
    const bool counts = BeginMark(i);
    gradients_.MarkRows(i, rows, row_count, values, counts);
  }

  /// Reduces the gradients that were not marked, and returns when every gradient holds its result.
  /// `Step()` calls it. Call it before, to read or to change the reduced gradients. A second call,
  /// or a call under NoSync(), does nothing. kInvalidArgument: earlier steps had marks and this
  /// step has none, so its backward pass is missing.
  void Synchronize() {
    if (synchronized_ || no_sync_ > 0) return;
    if (!is_away_) CheckBackward();
    gradients_.Begin(ChecksFinite());
    gradients_.EndMarks(is_away_);
    if (ChecksFinite())
      detail::CheckFinite(
          communicator_, inner_.parameters(), gradients_.TakeNonFinite(), ThisStep());
    gradients_.Wait(ThisStep());
    if (ChecksFinite()) gradients_.CheckResults(ThisStep());
    if (options_.max_gradient_norm > 0 && gradients_.participants() > 0)
      norm_ =
          detail::ClipByNorm(gradients_.Results(), options_.max_gradient_norm, inner_.loss_scale());
    synchronized_ = true;
  }

  /// Synchronizes, then lets the inner optimizer step. Under NoSync() the inner optimizer steps
  /// with this rank's own gradients.
  void Step() override {
    Synchronize();
    if (!synchronized_) gradients_.TakeOwn();
    if (deltas_ || no_sync_ > 0 || !options_.local_parameters.empty())
      inner_.Agree(communicator_, !(deltas_ && is_away_));
    if (deltas_ && no_sync_ == 0)
      StepTogether();
    else
      inner_.Step();
    if (no_sync_ > 0) {
      backward_seen_ = false;
      return gradients_.ForgetRows();
    }
    if (ChecksNow())
      detail::CheckSameValues(
          communicator_, inner_.parameters(), deltas_ ? deltas_->which() : gradients_.shared(),
          ThisStep());
    EndStep();
    ++steps_;
  }

  /// For uneven data: this rank has no more data. It takes part in the steps of the other ranks
  /// without gradients, until all ranks have joined. An average divides by the number of ranks that
  /// have data. Steps in which all ranks have data have no extra cost.
  ///
  /// The inner optimizer also steps on this rank, with the gradients of the other ranks. Thus
  /// parameters and optimizer state stay the same on all ranks. With kAdasum the inner optimizer
  /// does not step here; the parameters get the changes of the other ranks. `before_step` runs
  /// before each of these steps: do there the trainer's own work, for example, set a learning rate.
  ///
  /// If gradients were marked since the last step, Join first makes a step with them. Returns the
  /// rank that joined last. If several ranks joined last, before the same step, it returns the
  /// highest of them.
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

  /// Freezes parameter `i`: from now on it has no gradient and is not updated. Call Freeze and
  /// Thaw between steps, before the first mark. All ranks call them before the same step, otherwise
  /// that step is kMismatch and names the parameter and the ranks.
  ///
  /// A parameter that is frozen when the optimizer is wrapped is not reduced, and gets no gradient
  /// memory, until it is thawed. A parameter that is frozen later keeps its place in a bucket.
  void Freeze(size_t i) {
    CheckBetweenSteps(i, "Freeze");
    inner_.parameters()[i].requires_gradient = false;
  }
  /// Thaws parameter `i`: from now on it has a gradient and is updated. The rules of Freeze hold.
  void Thaw(size_t i) {
    CheckBetweenSteps(i, "Thaw");
    gradients_.Thaw(i);
  }

  /// Sets all gradients to zero, for the next step's backward passes to add to. kInvalidArgument: a
  /// gradient was marked and not yet used by a step, so peers may write to it.
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

  /// While the returned scope lives, this rank's gradients are not reduced, and its passes do not
  /// count as passes of a step. All ranks use it alike. The scope ends before the optimizer does.
  /// With a LossScaleOptimizer, Step() stays collective, because all ranks skip a step together.
  detail::CountedScope NoSync() { return detail::CountedScope(no_sync_); }

  /// The number of backward passes since the last step, the current pass included.
  int backward_passes() const { return gradients_.marks().passes(); }

  /// The norm of the last step's reduced gradients before clipping, without the loss scale. nullopt
  /// without `max_gradient_norm`.
  std::optional<double> gradient_norm() const { return norm_; }

  /// The time that steps took on this rank: see <dtrun/detail/statistics.h>.
  ReducerStatistics statistics() const { return gradients_.statistics(); }

  std::vector<Parameter>& parameters() override { return inner_.parameters(); }
  std::vector<NamedBuffer> state() override { return inner_.state(); }
  bool TakesRows() const override { return inner_.TakesRows(); }
  double loss_scale() const override { return inner_.loss_scale(); }
  bool StepsTogether() const override { return true; }

 private:
  // Returns the options. Throws if they are invalid or differ between the ranks.
  static DistributedOptions Agreed(
      Communicator& communicator, Optimizer& inner, DistributedOptions options) {
    const std::vector<Parameter>& parameters = inner.parameters();
    detail::CheckNames(parameters);
    detail::CheckRows(parameters);
    detail::CheckOptions(options, parameters, detail::SharedOf(parameters, options));
    if (detail::CombinesDeltas(options)) detail::CheckAdasumRanks(communicator.size());
    detail::CheckSameText(
        communicator, "options of the optimizer",
        detail::TextOf(options, parameters) + inner.SharedSettings());
    return options;
  }

  // The parameters that all ranks share; of tied parameters, only the first.
  std::vector<size_t> FirstOfShared() const {
    const std::vector<size_t> first = detail::FirstOfTied(inner_.parameters());
    std::vector<size_t> shared;
    for (const size_t i : detail::SharedOf(inner_.parameters(), options_))
      if (first[i] == i) shared.push_back(i);
    return shared;
  }

  // Each rank steps alone, then the ranks combine their changes. A rank that has joined changes no
  // parameter.
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

  // Returns true if a mark of parameter `i` belongs to a pass that counts.
  bool BeginMark(size_t i) {
    CheckIndex(i);
    backward_seen_ = true;
    if (no_sync_ == 0)
      gradients_.Begin(ChecksFinite());
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

  bool ChecksFinite() const { return ChecksNow() && !inner_.TakesOverflow(); }
  bool ChecksNow() const { return options_.check_every > 0 && steps_ % options_.check_every == 0; }
  std::string ThisStep() const { return " in step " + std::to_string(steps_); }

  Communicator communicator_;  // for all but the reducers
  Optimizer& inner_;
  DistributedOptions options_;
  detail::StepGradients gradients_;
  std::optional<detail::DeltaReduction> deltas_ = std::nullopt;  // empty: gradients are reduced
  int64_t steps_ = 0;
  int no_sync_ = 0;             // living scopes
  bool is_away_ = false;        // it has joined
  bool marked_before_ = false;  // in an earlier step

  // The state of this step.
  bool backward_seen_ = false;
  bool synchronized_ = false;
  std::optional<double> norm_ = std::nullopt;
};

}  // namespace dtrun

#endif
