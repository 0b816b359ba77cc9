#ifndef DTRUN_MODELS_REPORT_PAGE_H_
#define DTRUN_MODELS_REPORT_PAGE_H_

#include <dtrun/context.h>

#include <string>
#include <vector>

#include "models/report/run_report.h"

namespace dtrun::models {

/// The report as one HTML page that needs nothing else: no network, no font, no script. Pictures
/// are SVG; every number in them also stands in a table. Follows the reader's choice of light or
/// dark, fits the width of a phone, and can be printed.
std::string ToHtml(const RunReport& report);

/// Replaces the file `path` by the page, whole or not at all. Throws Error kSystem with the path
/// and the reason.
void WriteRunReport(const std::string& path, const RunReport& report);

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

#endif  // DTRUN_MODELS_REPORT_PAGE_H_
