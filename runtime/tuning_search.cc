#include "runtime/tuning_search.h"

#include <algorithm>
#include <utility>

namespace dtrun::runtime {
namespace {

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

TuningSearch::TuningSearch(
    std::vector<TuningDimension> dimensions, const TuningSearchOptions& options)
    : dimensions_(std::move(dimensions)), options_(options) {
  for (const TuningDimension& dimension : dimensions_)
    trial_.push_back(dimension.values[dimension.start]);
  SkipWithoutChoice();
}

void TuningSearch::SkipWithoutChoice() {
  while (!done() && dimensions_[dimension_].values.size() == 1) ++dimension_;
  if (done()) return;
  scores_.assign(dimensions_[dimension_].values.size(), {});
  value_ = 0;
  trial_[dimension_] = dimensions_[dimension_].values[0];
}

void TuningSearch::Record(double seconds) {
  scores_[value_].push_back(seconds);
  value_ = (value_ + 1) % scores_.size();
  const bool through = value_ == 0 && scores_[0].size() == static_cast<size_t>(options_.rounds);
  if (through) return EndDimension();
  trial_[dimension_] = dimensions_[dimension_].values[value_];
}

// The default, unless another is clearly faster.
size_t TuningSearch::Fastest() const {
  const size_t start = dimensions_[dimension_].start;
  size_t fastest = start;
  for (size_t value = 0; value < scores_.size(); ++value)
    if (Median(scores_[value]) < Median(scores_[fastest])) fastest = value;
  const double worth_it = Median(scores_[start]) * (1 - options_.least_gain);
  return Median(scores_[fastest]) < worth_it ? fastest : start;
}

void TuningSearch::EndDimension() {
  const size_t fastest = Fastest();
  seconds_ = Median(scores_[fastest]);
  trial_[dimension_] = dimensions_[dimension_].values[fastest];
  ++dimension_;
  SkipWithoutChoice();
}

uint64_t TuningSearch::trial_count() const {
  uint64_t trials = 0;
  for (const TuningDimension& dimension : dimensions_)
    if (dimension.values.size() > 1)
      trials += dimension.values.size() * static_cast<uint64_t>(options_.rounds);
  return trials;
}

}  // namespace dtrun::runtime
