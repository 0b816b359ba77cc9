#ifndef DTRUN_MODELS_REPORT_PAGE_H_
#define DTRUN_MODELS_REPORT_PAGE_H_

#include <dtrun/context.h>

#include <optional>
#include <string>
#include <vector>

#include "models/report/scaling.h"

namespace dtrun::models {

/// A name and what stands beside it on the page: "test accuracy", "0.9213".
struct ReportFact {
  std::string name, value;
};

/// One epoch, over all ranks; accuracies are fractions. What was not measured is absent; what came
/// out as NaN or infinite is shown as such.
struct ReportEpoch {
  std::optional<double> loss = {}, accuracy = {};  ///< on the training data
  std::optional<double> validation_loss = {}, validation_accuracy = {};
  std::optional<double> examples_per_s = {};  ///< that all ranks together trained on
  std::optional<double> seconds = {};         ///< of the training part
};

/// Where a rank's training time went, in seconds. The three do not overlap.
struct RankTime {
  double compute_s = 0;
  double exposed_s = 0;     ///< communication that computing did not hide
  double input_wait_s = 0;  ///< until the next examples were there

  double total_s() const { return compute_s + exposed_s + input_wait_s; }
};

/// A rank and its time, with the name of its host.
struct ReportRank {
  std::string host;
  RankTime time;
};

/// What there is to say of a run, for one page. Parts that are empty are left out.
struct RunReport {
  std::string title = "Training run";
  std::vector<ReportFact> results;   ///< shown large: accuracy, digest
  std::vector<ReportFact> settings;  ///< options, hosts, versions, in the order of the page
  std::string example = "image";     ///< what an example is called, in the singular
  std::vector<ReportEpoch> epochs;   ///< from epoch 1
  std::vector<ReportRank> ranks;     ///< by rank
  std::vector<ScalingRow> scaling;   ///< see ScalingTable
};

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
