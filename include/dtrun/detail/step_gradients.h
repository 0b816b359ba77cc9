#ifndef DTRUN_DETAIL_STEP_GRADIENTS_H_
#define DTRUN_DETAIL_STEP_GRADIENTS_H_

#include <dtrun/communicator.h>
#include <dtrun/detail/backward_marks.h>
#include <dtrun/detail/block_device.h>
#include <dtrun/detail/device.h>
#include <dtrun/detail/distributed_options.h>
#include <dtrun/detail/gradient_checks.h>
#include <dtrun/detail/reduced_gradients.h>
#include <dtrun/detail/row_gradients.h>
#include <dtrun/detail/statistics.h>
#include <dtrun/device_memory.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/types.h>

#include <algorithm>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

// The gradients of a DistributedOptimizer's step. Internal.

namespace dtrun {
namespace detail {

/// The gradients of each step, from their marks to the inner optimizer's input. Tied parameters
/// have one gradient, identified by the first of them. A gradient is reduced in buckets, gathered
/// by rows, local, or frozen.
class StepGradients {
 public:
  /// Collective. `options` have been checked. `inner` and `options` outlive this object.
  StepGradients(Communicator& communicator, Optimizer& inner, const DistributedOptions& options)
      : communicator_(communicator),
        parameters_(inner.parameters()),
        options_(options),
        takes_rows_(inner.TakesRows()),
        first_(FirstOfTied(parameters_)),
        reduced_(ReducedOf(parameters_, options)),
        is_local_(LocalOf(parameters_, first_, reduced_)),
        frozen_(parameters_, first_, is_local_),
        marks_(first_, options.backward_passes_per_step),
        gradients_(first_.size(), ReducerOptionsOf(communicator.size(), options), GroupsOfFirst()) {
    TieGradients(parameters_, first_);
    if (AnyOnGpu()) MeetAlone();
    TakeRows();
    AddGradients();
    for (size_t i = 0; i < first_.size(); ++i)
      if (is_local_[i] != 0 && rows_of_[i] == kNone) GiveMemory(i);
    marks_.Begin(frozen_.by_parameter());
  }

  StepGradients(const StepGradients&) = delete;
  StepGradients& operator=(const StepGradients&) = delete;

  size_t size() const { return first_.size(); }
  const BackwardMarks& marks() const { return marks_; }
  bool begun() const { return begun_; }
  /// The gradients that all ranks share, by the first of their parameters.
  const std::vector<size_t>& shared() const { return reduced_; }
  ReducerStatistics statistics() const { return gradients_.statistics(); }
  /// The number of ranks that had data in the last completed step.
  int participants() const { return participants_; }
  /// Returns and clears the first parameter for which a mark found an infinite or NaN number.
  std::optional<size_t> TakeNonFinite() { return std::exchange(first_non_finite_, {}); }

  /// Begins a step. A second call does nothing. `checks`: check numbers in this step.
  void Begin(bool checks) {
    if (begun_) return;
    begun_ = true;
    checks_ = checks;
    frozen_.Look(parameters_);
    marks_.Begin(frozen_.by_parameter());
    for (const size_t i : reduced_)
      if (gradients_.has(i) && frozen_.gradient_is_frozen(i)) gradients_.MarkUnused(i);
  }

  /// Updates the frozen parameters. Under NoSync() no step begins, but parameters may have been
  /// frozen or thawed before.
  void Look() {
    if (!begun_) frozen_.Look(parameters_);
  }

  void Mark(size_t i, bool used) {
    if (frozen_.is_frozen(i)) return;
    if (used && rows_of_[i] != kNone) rows_[rows_of_[i]].set_whole();
    MarkPass(i, used);
  }
  /// `counts`: the pass counts as a pass of the step.
  void MarkRows(size_t i, const int64_t* rows, uint64_t count, const Buffer& values, bool counts) {
    CheckRowsOf(parameters_[i], rows, count, values);
    if (frozen_.is_frozen(i)) return;
    if (!marks_.is_complete(i)) {
      if (checks_ && HasNonFinite(values)) NoteNonFinite(i);
      const HostView here(values);
      if (rows_of_[i] != kNone) {
        rows_[rows_of_[i]].Add(rows, count, here.buffer());
      } else {
        const HostView gradient(parameters_[i].gradient);
        AddRows(rows, count, parameters_[i].row_length, here.buffer(), gradient.buffer());
        gradient.Write();
      }
    }
    if (counts) MarkPass(i, true);
  }

  /// Ends the marks of this step. Parameters without a mark count as used, unless this rank is
  /// away.
  void EndMarks(bool is_away) {
    is_away_ = is_away;
    for (size_t i = first_.size(); i-- > 0;)  // in the order of a backward pass
      if (!frozen_.is_frozen(i) && marks_.End(i, !is_away)) Reduce(first_[i]);
  }

  /// Waits until every gradient holds its result, and sets `has_gradient` and `rows` of the
  /// parameters. Collective. `when` is for errors.
  void Wait(const std::string& when) {
    participants_ = communicator_.size();
    if (gradients_.Wait(is_away_ || frozen_.has_changed())) Listen(when);
    if (!rows_.empty()) GatherRows(communicator_, parameters_, rows_);
    for (size_t i = 0; i < first_.size(); ++i) Show(i);
    GiveRows(RowFactor());
  }

  /// The same with this rank's own gradients only.
  void TakeOwn() {
    Look();
    for (size_t i = 0; i < first_.size(); ++i)
      parameters_[i].has_gradient = first_[i] == i && !frozen_.gradient_is_frozen(i);
    for (RowGradients& rows : rows_) rows.TakeOwn(parameters_[rows.parameter()]);
    GiveRows(1);
  }

  /// Returns the reduced or gathered gradients that some rank has used.
  std::vector<Buffer> Results() const {
    std::vector<Buffer> results;
    for (const size_t i : reduced_) {
      const Parameter& parameter = parameters_[i];
      if (!parameter.has_gradient) continue;
      results.push_back(
          parameter.gradient.data == nullptr ? parameter.rows.values : parameter.gradient);
    }
    return results;
  }

  /// Throws kMismatch if a result is infinite or NaN. The inputs of all ranks were checked before
  /// and are finite. All ranks have the same results, so all ranks throw.
  void CheckResults(const std::string& when) const {
    for (const size_t i : reduced_) {
      const Parameter& parameter = parameters_[i];
      if (!parameter.has_gradient) continue;
      const Buffer& result =
          parameter.gradient.data == nullptr ? parameter.rows.values : parameter.gradient;
      if (HasNonFinite(result))
        throw Error(
            ErrorCode::kMismatch, "the reduced gradient of '" + NamesOf(parameters_, first_, i) +
                                      "' is infinite or NaN on all ranks" + when +
                                      ", though each rank's own is finite: the reduction "
                                      "overflows");
    }
  }

  void End() {
    begun_ = false;
    marks_.Begin(frozen_.by_parameter());
    ForgetRows();
  }
  void ForgetRows() {
    for (RowGradients& rows : rows_) rows.Reset();
  }

  /// Thaws a parameter, and gives its gradient memory.
  void Thaw(size_t i) {
    parameters_[i].requires_gradient = true;
    if (rows_of_[i] == kNone || !takes_rows_) GiveMemory(i);
  }

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);

  // Finds the parameters with gradients by rows. If the inner optimizer takes rows, such a
  // parameter has no other gradient.
  void TakeRows() {
    std::vector<uint8_t> by_rows(first_.size(), options_.sparse_as_dense ? 0 : 1);
    for (size_t i = 0; i < first_.size(); ++i)
      if (parameters_[i].row_length == 0 ||
          parameters_[i].row_length != parameters_[first_[i]].row_length)
        by_rows[first_[i]] = 0;
    rows_of_.assign(first_.size(), kNone);
    for (size_t i = 0; i < first_.size(); ++i) {
      if (by_rows[first_[i]] == 0) continue;
      if (first_[i] == i) rows_.emplace_back(i, is_local_[i] != 0);
      rows_of_[i] = first_[i] == i ? rows_.size() - 1 : rows_of_[first_[i]];
      if (takes_rows_)
        parameters_[i].gradient = Buffer();
      else if (parameters_[i].requires_gradient)
        GiveMemory(i);
    }
  }

  // The groups; tied parameters are replaced by the first of them.
  std::vector<std::vector<size_t>> GroupsOfFirst() const {
    std::vector<std::vector<size_t>> groups =
        GroupsOf(parameters_, ReducedOf(parameters_, options_), options_);
    for (std::vector<size_t>& group : groups)
      for (size_t& i : group) i = first_[i];
    return groups;
  }

  // Adds the gradients that are in no reducer yet to a new reducer. Collective.
  std::vector<size_t> AddGradients() {
    std::vector<size_t> added;
    std::vector<std::string> names;
    for (const size_t i : reduced_) {
      if (rows_of_[i] != kNone || gradients_.has(i) || frozen_.gradient_is_frozen(i)) continue;
      added.push_back(i);
      names.push_back(NamesOf(parameters_, first_, i));
    }
    gradients_.Add(communicator_, parameters_, added, names);
    for (size_t i = 0; i < first_.size(); ++i)
      parameters_[i].gradient = parameters_[first_[i]].gradient;
    return added;
  }

  void GiveMemory(size_t i) {
    const Buffer& value = parameters_[i].value;
    Buffer& shared = parameters_[first_[i]].gradient;
    if (shared.data == nullptr) {
      shared = value;
      if (value.device >= 0) {
        device_memory_.push_back(AllocateOnDevice(*alone_, value.device, value.bytes()));
        shared.data = device_memory_.back().data();
      } else {
        memory_.emplace_back((value.bytes() + 7) / 8);
        shared.data = memory_.back().data();
      }
    }
    parameters_[i].gradient = shared;
  }

  void NoteNonFinite(size_t i) {
    if (!first_non_finite_) first_non_finite_ = i;
  }

  void MarkPass(size_t i, bool used) {
    if (marks_.Mark(i, used, parameters_[i].name)) Reduce(first_[i]);
  }

  // Reduces a complete gradient. Wait gathers gradients by rows. A thawed gradient is added later,
  // when all ranks agree.
  void Reduce(size_t i) {
    if (rows_of_[i] != kNone) return;
    if (marks_.is_used(i) && checks_ && HasNonFinite(parameters_[i].gradient)) NoteNonFinite(i);
    if (gradients_.has(i)) PassOn(i);
  }
  void PassOn(size_t i) {
    if (marks_.is_used(i))
      gradients_.MarkReady(i);
    else
      gradients_.MarkUnused(i);
  }

  // Exchanges news. A rank is away, or has frozen or thawed a parameter.
  void Listen(const std::string& when) {
    std::vector<uint8_t> away(static_cast<size_t>(communicator_.size()));
    uint8_t mine = is_away_ ? 1 : 0;
    communicator_.AllGather(Buffer(&mine, 1), Buffer(away.data(), away.size()));
    for (const uint8_t one : away) participants_ -= one;
    if (frozen_.Agree(communicator_, parameters_, away, when)) {
      GiveThawedRowsMemory();
      ReduceThawed();
    }
    if (options_.op == ReduceOp::kAverage && participants_ > 0 &&
        participants_ < communicator_.size())
      CorrectAverages();
  }

  // Gives gradients by rows their memory on a rank that was away when the other ranks thawed the
  // parameter.
  void GiveThawedRowsMemory() {
    for (size_t i = 0; i < first_.size(); ++i)
      if (rows_of_[i] != kNone && !takes_rows_ && parameters_[i].requires_gradient) GiveMemory(i);
  }

  void ReduceThawed() {
    if (!AnyToAdd()) return;
    for (const size_t i : AddGradients()) PassOn(i);
    gradients_.WaitForAdded();
  }
  bool AnyToAdd() const {
    for (const size_t i : reduced_)
      if (rows_of_[i] == kNone && !gradients_.has(i) && !frozen_.gradient_is_frozen(i)) return true;
    return false;
  }

  // Corrects averages, which were divided by all ranks. A communicator of one rank multiplies in
  // every dtype.
  void CorrectAverages() {
    if (!alone_) MeetAlone();
    const double factor = static_cast<double>(communicator_.size()) / participants_;
    for (const size_t i : reduced_)
      if (gradients_.has(i) && IsUsed(i))
        alone_->AllReduce(parameters_[i].gradient, ReduceOp::kSum, {factor, 1});
  }

  // Makes the communicator of this rank alone. Collective.
  void MeetAlone() { alone_ = communicator_.Split(communicator_.rank()); }
  bool AnyOnGpu() const {
    return std::any_of(parameters_.begin(), parameters_.end(), [](const Parameter& parameter) {
      return parameter.value.device >= 0;
    });
  }

  // Returns true if any rank has used the gradient; for a local gradient, if this rank has.
  bool IsUsed(size_t i) const {
    return marks_.is_used(i) || (gradients_.has(i) && gradients_.WasUsed(i));
  }

  void Show(size_t i) {
    Parameter& parameter = parameters_[i];
    parameter.has_gradient = false;
    if (first_[i] != i || rows_of_[i] != kNone || frozen_.gradient_is_frozen(i)) return;
    parameter.has_gradient = IsUsed(i);
    // For optimizers that do not read `has_gradient`.
    if (!parameter.has_gradient) Clear(parameter.gradient);
  }

  double RowFactor() const {
    const int divisor =
        (options_.op == ReduceOp::kAverage && participants_ > 0 ? participants_ : 1) *
        (options_.average_aggregated_gradients ? options_.backward_passes_per_step : 1);
    return 1.0 / divisor;
  }
  void GiveRows(double factor) {
    for (RowGradients& rows : rows_) rows.Give(parameters_[rows.parameter()], factor);
  }

  Communicator& communicator_;
  std::vector<Parameter>& parameters_;
  const DistributedOptions& options_;
  bool takes_rows_;
  std::vector<size_t> first_;      // by parameter: the first of its ties
  std::vector<size_t> reduced_;    // first parameters that are not local
  std::vector<uint8_t> is_local_;  // by parameter
  FrozenParameters frozen_;
  std::vector<size_t> rows_of_;  // by parameter: index in rows_, or kNone
  std::vector<RowGradients> rows_;
  std::optional<Communicator> alone_ = std::nullopt;
  // Of gradients that had no memory and are in no reducer.
  std::list<std::vector<uint64_t>> memory_;
  std::list<Memory> device_memory_;

  // The state of this step.
  BackwardMarks marks_;
  ReducedGradients gradients_;
  bool begun_ = false, checks_ = false, is_away_ = false;
  std::optional<size_t> first_non_finite_ = std::nullopt;
  int participants_ = 0;
};

}  // namespace detail
}  // namespace dtrun

#endif
