#ifndef DTRUN_METRICS_H_
#define DTRUN_METRICS_H_

#include <dtrun/communicator.h>
#include <dtrun/detail/gradient_checks.h>
#include <dtrun/error.h>
#include <dtrun/objects.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace dtrun {

/// Numbers by name.
using Metrics = std::map<std::string, double>;

/// Returns the weighted average of each metric over all ranks, with the same bits on all ranks.
/// `weight` is the weight of this rank's numbers, for example the number of examples behind them.
/// Ranks may have different weights. Collective. Errors on all ranks: kMismatch (a metric is
/// missing on some ranks; the error lists the ranks that have it), kInvalidArgument (a weight below
/// 0, or all weights are 0).
///
///   rank 0: {{"loss", 1}}, weight 30   rank 1: {{"loss", 2}}, weight 10
///   ->  both {{"loss", 1.25}}
inline Metrics AverageMetrics(
    Communicator& communicator, const Metrics& metrics, double weight = 1) {
  std::vector<std::string> names;
  std::vector<double> mine = {weight};
  for (const auto& metric : metrics) names.push_back(metric.first), mine.push_back(metric.second);
  const std::vector<std::vector<std::string>> all_names = AllGatherStrings(communicator, names);
  const std::vector<std::vector<double>> all = AllGatherObjects(communicator, mine);

  std::map<std::string, std::vector<int>> owners;
  for (size_t rank = 0; rank < all_names.size(); ++rank)
    for (const std::string& name : all_names[rank]) owners[name].push_back(static_cast<int>(rank));
  for (const auto& owner : owners)
    if (owner.second.size() != all.size())
      throw Error(
          ErrorCode::kMismatch, "the ranks have different metrics: '" + owner.first + "' is on " +
                                    detail::RankList(owner.second) + " alone");

  double weights = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!(all[rank][0] >= 0))
      throw Error(
          ErrorCode::kInvalidArgument, "the metrics of rank " + std::to_string(rank) +
                                           " have the weight " + std::to_string(all[rank][0]) +
                                           "; expected 0 or more");
    weights += all[rank][0];
  }
  if (!(weights > 0))
    throw Error(ErrorCode::kInvalidArgument, "the metrics of all ranks have the weight 0");
  Metrics averages;
  for (size_t i = 0; i < names.size(); ++i) {
    double sum = 0;
    for (const std::vector<double>& of_rank : all)
      if (of_rank[0] > 0) sum += of_rank[0] * of_rank[i + 1];
    averages[names[i]] = sum / weights;
  }
  return averages;
}

}  // namespace dtrun

#endif
