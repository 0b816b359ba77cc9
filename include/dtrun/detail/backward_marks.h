#ifndef DTRUN_DETAIL_BACKWARD_MARKS_H_
#define DTRUN_DETAIL_BACKWARD_MARKS_H_

#include <dtrun/communicator.h>
#include <dtrun/detail/gradient_checks.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/types.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// Counts the backward passes of a DistributedOptimizer. Internal.

namespace dtrun {
namespace detail {

/// The marks of gradients since the last step. Each parameter is marked once in every backward
/// pass, as ready or as unused. Tied parameters have one gradient, identified by the first of them,
/// which is complete when all of them are complete. Frozen parameters need no mark.
class BackwardMarks {
 public:
  /// `first`: for each parameter, the first parameter that it is tied to.
  BackwardMarks(std::vector<size_t> first, int passes)
      : first_(std::move(first)),
        passes_(passes),
        marks_(first_.size(), 0),
        used_(first_.size(), 0),
        left_(first_.size(), 0) {}

  /// Starts a new step. `frozen` has 1 for each parameter that is frozen in this step.
  void Begin(const std::vector<uint8_t>& frozen) {
    std::fill(marks_.begin(), marks_.end(), 0);
    std::fill(used_.begin(), used_.end(), uint8_t{0});
    std::fill(left_.begin(), left_.end(), 0);
    for (size_t i = 0; i < first_.size(); ++i) left_[first_[i]] += frozen[i] == 0;
  }

  /// Counts one pass. Returns true if the gradient is complete now. Throws if the parameter was
  /// already complete; `name` is for the text.
  bool Mark(size_t i, bool used, const std::string& name) {
    if (marks_[i] >= passes_)
      throw Error(
          ErrorCode::kInvalidArgument,
          "the gradient of '" + name + "' was marked ready more than " +
              (passes_ == 1 ? "once" : std::to_string(passes_) + " times") +
              " since the last step; call Step() before, set backward_passes_per_step to the "
              "passes of a step, or make further passes under NoSync()");
    if (used) used_[first_[i]] = 1;
    return ++marks_[i] == passes_ && --left_[first_[i]] == 0;
  }
  /// Ends the marks of a parameter. Returns true if the gradient is complete now.
  bool End(size_t i, bool used) {
    if (marks_[i] >= passes_) return false;
    marks_[i] = passes_;
    if (used) used_[first_[i]] = 1;
    return --left_[first_[i]] == 0;
  }

  bool is_complete(size_t i) const { return marks_[i] >= passes_; }
  /// Returns true if the gradient was marked ready in a pass. `first` is the gradient's first
  /// parameter.
  bool is_used(size_t first) const { return used_[first] != 0; }
  bool any_complete() const {
    return std::any_of(marks_.begin(), marks_.end(), [this](int m) { return m >= passes_; });
  }
  /// The number of passes that have begun.
  int passes() const {
    return marks_.empty() ? 0 : *std::max_element(marks_.begin(), marks_.end());
  }

 private:
  std::vector<size_t> first_;
  int passes_;
  std::vector<int> marks_;     // passes, by parameter
  std::vector<uint8_t> used_;  // by first parameter
  std::vector<int> left_;      // incomplete tied parameters, by the first of them
};

/// Increments a counter while it lives.
class [[nodiscard]] CountedScope {
 public:
  explicit CountedScope(int& scopes) : scopes_(&scopes) { ++*scopes_; }
  CountedScope(CountedScope&& other) noexcept : scopes_(std::exchange(other.scopes_, nullptr)) {}
  CountedScope& operator=(CountedScope&&) = delete;
  ~CountedScope() {
    if (scopes_ != nullptr) --*scopes_;
  }

 private:
  int* scopes_;
};

// The frozen parameters of a DistributedOptimizer. Internal.

/// Returns the frozen parameters (1 or 0 by parameter) that the ranks agree on. Ranks that are
/// `away` (by rank) do not count, unless all ranks are away. Throws kMismatch on all ranks if the
/// ranks differ. Collective.
inline std::vector<uint8_t> AgreeOnFrozen(
    Communicator& communicator, const std::vector<Parameter>& parameters,
    const std::vector<uint8_t>& frozen, const std::vector<uint8_t>& away, const std::string& when) {
  std::vector<uint8_t> mine = frozen;
  std::vector<uint8_t> all(mine.size() * away.size());
  communicator.AllGather(Buffer(mine.data(), mine.size()), Buffer(all.data(), all.size()));
  const bool nobody_else = std::find(away.begin(), away.end(), uint8_t{0}) == away.end();
  for (size_t i = 0; i < mine.size(); ++i) {
    std::vector<int> sides[2];
    for (size_t rank = 0; rank < away.size(); ++rank)
      if (nobody_else || away[rank] == 0)
        sides[all[rank * mine.size() + i] != 0].push_back(static_cast<int>(rank));
    if (!sides[0].empty() && !sides[1].empty())
      throw Error(
          ErrorCode::kMismatch, "parameter '" + parameters[i].name + "' is frozen on " +
                                    RankList(sides[1]) + " and not on " + RankList(sides[0]) +
                                    when +
                                    "; all ranks Freeze() and Thaw() it before the same step");
    if (sides[0].size() + sides[1].size() > 0) mine[i] = sides[0].empty() ? 1 : 0;
  }
  return mine;
}

/// The parameters that are frozen in a step, from their `requires_gradient`, and the last agreement
/// of the ranks. Ranks need not agree on local parameters.
class FrozenParameters {
 public:
  /// `first`: for each parameter, the first parameter that it is tied to. `is_local`: 1 or 0.
  FrozenParameters(
      const std::vector<Parameter>& parameters, const std::vector<size_t>& first,
      const std::vector<uint8_t>& is_local)
      : first_(first), is_local_(is_local) {
    Look(parameters);
    agreed_ = shared_;
  }

  void Look(const std::vector<Parameter>& parameters) {
    frozen_.assign(first_.size(), 0);
    shared_.assign(first_.size(), 0);
    gradients_.assign(first_.size(), 1);
    for (size_t i = 0; i < first_.size(); ++i) {
      frozen_[i] = parameters[i].requires_gradient ? 0 : 1;
      if (is_local_[i] == 0) shared_[i] = frozen_[i];
      if (frozen_[i] == 0) gradients_[first_[i]] = 0;
    }
  }

  bool is_frozen(size_t i) const { return frozen_[i] != 0; }
  /// Returns true if the parameter and all parameters that are tied to it are frozen.
  bool gradient_is_frozen(size_t i) const { return gradients_[first_[i]] != 0; }
  const std::vector<uint8_t>& by_parameter() const { return frozen_; }
  /// Returns true if a parameter of this rank has changed since the agreement.
  bool has_changed() const { return shared_ != agreed_; }

  /// Agrees as AgreeOnFrozen does. A rank that is away takes over the agreement of the other ranks.
  /// Returns true, on all ranks, if the agreement has changed. Collective.
  bool Agree(
      Communicator& communicator, std::vector<Parameter>& parameters,
      const std::vector<uint8_t>& away, const std::string& when) {
    std::vector<uint8_t> agreed = AgreeOnFrozen(communicator, parameters, shared_, away, when);
    const bool changed = agreed != agreed_;
    if (!changed && agreed == shared_) return false;
    agreed_ = std::move(agreed);
    for (size_t i = 0; i < first_.size(); ++i)
      if (is_local_[i] == 0) parameters[i].requires_gradient = agreed_[i] == 0;
    Look(parameters);
    return changed;
  }

 private:
  std::vector<size_t> first_;
  std::vector<uint8_t> is_local_;
  std::vector<uint8_t> frozen_, shared_, agreed_;  // by parameter; the last two without local ones
  std::vector<uint8_t> gradients_;                 // by first parameter
};

}  // namespace detail
}  // namespace dtrun

#endif  // DTRUN_DETAIL_BACKWARD_MARKS_H_
