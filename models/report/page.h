#ifndef DTRUN_MODELS_REPORT_PAGE_H_
#define DTRUN_MODELS_REPORT_PAGE_H_

#include <dtrun/context.h>

#include <optional>
#include <string>
#include <vector>

#include "models/report/scaling.h"

namespace dtrun::models {

/// A name and its value on the page: "test accuracy", "0.9213".
struct ReportFact {
  std::string name, value;
};

/// One epoch, over all ranks. Accuracies are fractions. Values that were not measured are absent.
/// Values that are not finite are shown as NaN or infinity.
struct ReportEpoch {
  std::optional<double> loss = {}, accuracy = {};  ///< on the training data
  std::optional<double> validation_loss = {}, validation_accuracy = {};
  std::optional<double> examples_per_s = {};  ///< of all ranks together
  std::optional<double> seconds = {};         ///< of the training part
};

/// The parts of a rank's training time, in seconds. They do not overlap.
struct RankTime {
  double compute_s = 0;
  double exposed_s = 0;     ///< communication that computing did not hide
  double input_wait_s = 0;  ///< waiting for the next examples

  double total_s() const { return compute_s + exposed_s + input_wait_s; }
};

/// A rank's time, with the name of its host.
struct ReportRank {
  std::string host;
  RankTime time;
};

/// The content of the page about a run. Empty parts are left out.
struct RunReport {
  std::string title = "Training run";
  std::vector<ReportFact> results;   ///< shown large: accuracy, digest
  std::vector<ReportFact> settings;  ///< options, hosts, versions, in the order of the page
  std::string example = "image";     ///< name of an example, in the singular
  std::vector<ReportEpoch> epochs;   ///< from epoch 1
  std::vector<ReportRank> ranks;     ///< by rank
  std::vector<ScalingRow> scaling;   ///< see ScalingTable
};

/// The one form of accuracies and losses on a page, also in its results.
///   0.91634 -> "91.63 %"   0.231249 -> "0.2312"
std::string AccuracyText(double fraction);
std::string LossText(double loss);

/// The report as one self-contained HTML page, without network, fonts or scripts. Figures are SVG.
/// Every number in a figure is also in a table. The page follows the reader's choice of light or
/// dark, fits the width of a phone, and can be printed.
std::string ToHtml(const RunReport& report);

/// Replaces the file `path` atomically by the page. Throws Error kSystem with the path and the
/// reason.
void WriteRunReport(const std::string& path, const RunReport& report);

/// Splits a rank's training time. `exposed_s` is the increase of StepStatistics::exposed_s in that
/// time, the wait for gradients. The compute time is the rest after the waits for gradients and
/// examples. No part of the result is below 0. Clocks may differ a little, so the sum may exceed
/// `training_s`, but is never below it.
///   10 s, 2 s exposed, 1 s of waiting for input  ->  7 s of computing
RankTime SplitTrainingTime(double training_s, double exposed_s, double input_wait_s);

/// Gathers the times of all ranks, by rank, on every rank. Collective. Throws the errors of
/// Communicator.
std::vector<ReportRank> GatherRankTimes(Context& job, const RankTime& mine);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_REPORT_PAGE_H_
