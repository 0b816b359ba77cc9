#include "models/metrics/metric.h"

#include <algorithm>

namespace dtrun::models {

void Metric::Reset() {
  const std::span<double> sums = state();
  std::fill(sums.begin(), sums.end(), 0.0);
}

// As doubles: counts stay exact below 2^53.
void SumOverRanks(Communicator& communicator, std::span<Metric* const> metrics) {
  std::vector<double> sums;
  for (Metric* metric : metrics) {
    const std::span<double> state = metric->state();
    sums.insert(sums.end(), state.begin(), state.end());
  }
  communicator.AllReduce(Buffer(sums.data(), sums.size()));
  auto next = sums.begin();
  for (Metric* metric : metrics) {
    const std::span<double> state = metric->state();
    std::copy_n(next, state.size(), state.begin());
    next += static_cast<ptrdiff_t>(state.size());
  }
}

}  // namespace dtrun::models
