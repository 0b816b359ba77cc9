#ifndef DTRUN_BACKWARD_MARKS_H_
#define DTRUN_BACKWARD_MARKS_H_

#include <dtrun/error.h>

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

}  // namespace detail
}  // namespace dtrun

#endif
