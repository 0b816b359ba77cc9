#include "models/report/rank_times.h"

#include <dtrun/objects.h>

#include <algorithm>

namespace dtrun::models {

RankTime SplitTrainingTime(double training_s, double exposed_s, double input_wait_s) {
  RankTime time;
  time.exposed_s = std::max(exposed_s, 0.0);
  time.input_wait_s = std::max(input_wait_s, 0.0);
  time.compute_s = std::max(training_s - time.exposed_s - time.input_wait_s, 0.0);
  return time;
}

std::vector<ReportRank> GatherRankTimes(Context& job, const RankTime& mine) {
  std::vector<ReportRank> ranks;
  for (const Host& host : job.hosts())
    ranks.insert(ranks.end(), static_cast<size_t>(host.slots), ReportRank{host.name, {}});
  const std::vector<double> numbers = {mine.compute_s, mine.exposed_s, mine.input_wait_s};
  const std::vector<std::vector<double>> all = AllGatherObjects(job.world(), numbers);
  ranks.resize(all.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    ranks[rank].time = {all[rank][0], all[rank][1], all[rank][2]};
  return ranks;
}

}  // namespace dtrun::models
