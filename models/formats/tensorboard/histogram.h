#ifndef DTRUN_MODELS_FORMATS_TENSORBOARD_HISTOGRAM_H_
#define DTRUN_MODELS_FORMATS_TENSORBOARD_HISTOGRAM_H_

#include <span>
#include <vector>

namespace dtrun::models {

/// How values are distributed over buckets of equal width between the smallest and the largest.
struct Histogram {
  double count = 0, min = 0, max = 0, sum = 0, sum_of_squares = 0;
  std::vector<double> upper_limits;  ///< of the buckets, ascending; the last is max
  std::vector<double> counts;        ///< of values in each; the last takes max too
};

/// With 30 buckets, as Keras has them; one when all values are equal, none without a value. What is
/// not finite is left out.
Histogram HistogramOf(std::span<const float> values);

}  // namespace dtrun::models

#endif
