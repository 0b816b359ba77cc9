#ifndef DTRUN_MODELS_REPORT_RUN_REPORT_H_
#define DTRUN_MODELS_REPORT_RUN_REPORT_H_

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

}  // namespace dtrun::models

#endif
