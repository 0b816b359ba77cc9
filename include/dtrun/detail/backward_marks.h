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

// How DistributedOptimizer counts backward passes; not for trainers.

namespace dtrun {
namespace detail {

/// What the trainer has said of its gradients since the last step: each parameter is marked once in
/// every backward pass, as ready or as unused. Tied parameters have one gradient, known by the
/// first of them: it is complete when all are. Frozen ones wait for no mark.
class BackwardMarks {
 public:
  /// `first`: for each parameter the first of those it is tied to.
  BackwardMarks(std::vector<size_t> first, int passes)
      : first_(std::move(first)),
        passes_(passes),
        marks_(first_.size(), 0),
        used_(first_.size(), 0),
        left_(first_.size(), 0) {}

  /// A new step, with the parameters that are `frozen` in it.
  void Begin(const std::vector<uint8_t>& frozen) {
    std::fill(marks_.begin(), marks_.end(), 0);
    std::fill(used_.begin(), used_.end(), uint8_t{0});
    std::fill(left_.begin(), left_.end(), 0);
    for (size_t i = 0; i < first_.size(); ++i) left_[first_[i]] += frozen[i] == 0;
  }

  /// One pass more; true if the gradient is complete now. Throws if the parameter was already:
  /// `name` is for the text.
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
  /// No mark will come for it any more; true if the gradient is complete now.
  bool End(size_t i, bool used) {
    if (marks_[i] >= passes_) return false;
    marks_[i] = passes_;
    if (used) used_[first_[i]] = 1;
    return --left_[first_[i]] == 0;
  }

  bool is_complete(size_t i) const { return marks_[i] >= passes_; }
  /// Marked ready in a pass, of a gradient's first parameter.
  bool is_used(size_t first) const { return used_[first] != 0; }
  bool any_complete() const {
    return std::any_of(marks_.begin(), marks_.end(), [this](int m) { return m >= passes_; });
  }
  /// Passes that have begun.
  int passes() const {
    return marks_.empty() ? 0 : *std::max_element(marks_.begin(), marks_.end());
  }

 private:
  std::vector<size_t> first_;
  int passes_;
  std::vector<int> marks_;     // passes, by parameter
  std::vector<uint8_t> used_;  // by first parameter
  std::vector<int> left_;      // tied parameters that are not complete, by the first of them
};

/// While it lives, the count it was given is one more.
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

// How DistributedOptimizer knows what is frozen; not for trainers.

/// What the ranks that are not `away` (by rank), or all if nobody else is there, have frozen (by
/// parameter, 1 or 0). Throws kMismatch on all ranks unless it is the same. Collective.
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

/// Which parameters are frozen in a step, as their `requires_gradient` says, and what the ranks
/// last agreed upon. Local ones are each rank's own affair.
class FrozenParameters {
 public:
  /// `first`: for each parameter the first of those it is tied to; `is_local`: 1 or 0.
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
  /// The parameter and all that are tied to it.
  bool gradient_is_frozen(size_t i) const { return gradients_[first_[i]] != 0; }
  const std::vector<uint8_t>& by_parameter() const { return frozen_; }
  /// Something has changed here since the ranks agreed.
  bool has_changed() const { return shared_ != agreed_; }

  /// See AgreeOnFrozen: a rank that is away follows the others, whatever it has frozen itself.
  /// True, on all ranks, if what they agree upon has changed. Collective.
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
  std::vector<uint8_t> frozen_, shared_, agreed_;  // by parameter; the latter without local ones
  std::vector<uint8_t> gradients_;                 // by first parameter
};

}  // namespace detail
}  // namespace dtrun

#endif  // DTRUN_DETAIL_BACKWARD_MARKS_H_
