#ifndef DTRUN_RUNTIME_TUNING_SEARCH_H_
#define DTRUN_RUNTIME_TUNING_SEARCH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dtrun::runtime {

/// Something that can be set, and what to try for it.
struct TuningDimension {
  std::string name;
  std::vector<uint64_t> values;
  size_t start = 0;  ///< where the search begins: the default is in the box
};

struct TuningSearchOptions {
  /// Each value is tried so often, in turn with the others: what changes meanwhile changes for all.
  int rounds = 5;
  /// By how much another value has to be faster than the default to take its place, as a fraction:
  /// noise moves nothing.
  double least_gain = 0.02;
};

/// Looks for the fastest of a box of settings, one dimension after the other, each from where the
/// dimensions before it have come to (coordinate descent, once through). It decides by medians
/// alone: the same scores give the same result on every rank. Pure.
///
///   while (!search.done()) search.Record(SecondsOfAStepWith(search.trial()));
class TuningSearch {
 public:
  /// `dimensions` have values, and `start` is one of them.
  explicit TuningSearch(
      std::vector<TuningDimension> dimensions, const TuningSearchOptions& options = {});

  bool done() const { return dimension_ == dimensions_.size(); }
  /// A value for each dimension: what to try next; when done, the best.
  const std::vector<uint64_t>& trial() const { return trial_; }
  /// How long a step took with `trial()`. Not when done.
  void Record(double seconds);
  /// The median that the result had when it was chosen; 0 before the first dimension is through.
  double seconds() const { return seconds_; }
  /// Trials of the whole search.
  uint64_t trial_count() const;

 private:
  size_t Fastest() const;
  void EndDimension();
  void SkipWithoutChoice();

  std::vector<TuningDimension> dimensions_;
  TuningSearchOptions options_;
  std::vector<uint64_t> trial_;
  double seconds_ = 0;

  // Of the dimension that is searched.
  size_t dimension_ = 0, value_ = 0;
  std::vector<std::vector<double>> scores_;  // by value
};

}  // namespace dtrun::runtime

#endif
