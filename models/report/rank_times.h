#ifndef DTRUN_MODELS_REPORT_RANK_TIMES_H_
#define DTRUN_MODELS_REPORT_RANK_TIMES_H_

#include <dtrun/context.h>

#include <vector>

#include "models/report/run_report.h"

namespace dtrun::models {

/// Splits the time that a rank spent in training: what it neither waited for gradients
/// (`exposed_s`: the difference of StepStatistics::exposed_s over that time) nor for examples, it
/// computed. Clocks that were read one after the other may disagree by a little; no part of the
/// result is below 0, and their sum is not below `training_s`.
///   10 s, 2 s exposed, 1 s of waiting for input  ->  7 s of computing
RankTime SplitTrainingTime(double training_s, double exposed_s, double input_wait_s);

/// Collective: every rank brings its own time, and all leave with those of all ranks, by rank.
/// Errors are those of Communicator.
std::vector<ReportRank> GatherRankTimes(Context& job, const RankTime& mine);

}  // namespace dtrun::models

#endif
