#ifndef DTRUN_MODELS_TRAIN_VERDICT_H_
#define DTRUN_MODELS_TRAIN_VERDICT_H_

#include <dtrun/context.h>

#include <string>
#include <vector>

#include "models/train/exit_codes.h"

namespace dtrun::models {

/// Whether a rank is ready to train.
struct Verdict {
  int exit_code = kSuccess;
  std::string problem = {};  ///< one line, when the code is not kSuccess
  /// What has to be equal on all ranks, "name=value" per line: options, the data's extent.
  std::string settings = {};
};

/// What the ranks, each of which has one verdict, do together: go on, or leave with one code and
/// one line. Which ranks have the problem is said unless all have it.
///   ranks 0 and 1: ready; rank 2: 66, "x: missing"  ->  66, "rank 2 (host b): x: missing"
/// `host_of_rank` has the names of the ranks' hosts.
Verdict Combine(const std::vector<Verdict>& of_ranks, const std::vector<std::string>& host_of_rank);

/// Collective: every rank brings its own verdict and leaves with the combined one.
Verdict AgreeOn(const Verdict& mine, Context& job);

}  // namespace dtrun::models

#endif
