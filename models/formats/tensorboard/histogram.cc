#include "models/formats/tensorboard/histogram.h"

#include <algorithm>
#include <cmath>

namespace dtrun::models {
namespace {

constexpr size_t kBuckets = 30;

void Measure(std::span<const float> values, Histogram& histogram) {
  for (float value : values) {
    if (!std::isfinite(value)) continue;
    const double x = value;
    histogram.min = histogram.count == 0 ? x : std::min(histogram.min, x);
    histogram.max = histogram.count == 0 ? x : std::max(histogram.max, x);
    ++histogram.count;
    histogram.sum += x;
    histogram.sum_of_squares += x * x;
  }
}

}  // namespace

Histogram HistogramOf(std::span<const float> values) {
  Histogram histogram;
  Measure(values, histogram);
  if (histogram.count == 0) return histogram;
  const double range = histogram.max - histogram.min;
  if (range == 0) {
    histogram.upper_limits = {histogram.max};
    histogram.counts = {histogram.count};
    return histogram;
  }
  for (size_t i = 1; i < kBuckets; ++i)
    histogram.upper_limits.push_back(histogram.min + range * double(i) / double(kBuckets));
  histogram.upper_limits.push_back(histogram.max);
  histogram.counts.resize(kBuckets);
  for (float value : values) {
    if (!std::isfinite(value)) continue;
    const double position = (double(value) - histogram.min) / range * double(kBuckets);
    ++histogram.counts[std::min(static_cast<size_t>(position), kBuckets - 1)];
  }
  return histogram;
}

}  // namespace dtrun::models
