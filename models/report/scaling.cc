#include "models/report/scaling.h"

#include <dtrun/error.h>

#include <algorithm>
#include <cmath>

#include "models/text.h"

namespace dtrun::models {
namespace {

[[noreturn]] void Refuse(const std::string& problem) {
  throw Error(ErrorCode::kInvalidArgument, problem);
}

double RateOf(const TimedEpoch& epoch) {
  if (epoch.examples == 0 || !std::isfinite(epoch.seconds) || epoch.seconds <= 0) {
    Refuse(Text(
        "an epoch of ", epoch.examples, " examples in ", epoch.seconds,
        " s; expected examples and a time"));
  }
  return static_cast<double>(epoch.examples) / epoch.seconds;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double RateOf(const ScalingRun& run) {
  try {
    return MedianRate(run.epochs);
  } catch (const Error& error) {
    Refuse(Text(run.ranks, run.ranks == 1 ? " rank: " : " ranks: ", error.what()));
  }
}

}  // namespace

double MedianRate(const std::vector<TimedEpoch>& epochs) {
  if (epochs.size() < 2) {
    Refuse(Text(
        epochs.size(), epochs.size() == 1 ? " epoch" : " epochs",
        "; expected at least 2, since the first one warms up and does not count"));
  }
  std::vector<double> rates;
  for (size_t i = 1; i < epochs.size(); ++i) rates.push_back(RateOf(epochs[i]));
  return Median(std::move(rates));
}

std::vector<ScalingRow> ScalingTable(const std::vector<ScalingRun>& runs) {
  std::vector<ScalingRow> rows;
  for (const ScalingRun& run : runs) {
    if (run.ranks < 1) Refuse(Text("a run on ", run.ranks, " ranks; expected at least 1"));
    rows.push_back({.ranks = run.ranks, .examples_per_s = RateOf(run)});
  }
  std::sort(rows.begin(), rows.end(), [](const ScalingRow& a, const ScalingRow& b) {
    return a.ranks < b.ranks;
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i > 0 && rows[i].ranks == rows[i - 1].ranks)
      Refuse(Text("two runs on ", rows[i].ranks, " ranks; expected one of each"));
    const double one = rows[0].examples_per_s / rows[0].ranks;
    rows[i].efficiency = rows[i].examples_per_s / rows[i].ranks / one;
    rows[i].speed_up = rows[i].efficiency * rows[i].ranks;
  }
  return rows;
}

}  // namespace dtrun::models
