#ifndef DTRUN_MODELS_TRAIN_HISTORY_H_
#define DTRUN_MODELS_TRAIN_HISTORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "models/callbacks/callback.h"

namespace dtrun::models {

/// What Fit has seen, the same on all ranks.
struct History {
  std::vector<uint64_t> epochs;  ///< which ones ended in this run, from 0
  std::vector<Logs> logs;        ///< of each of them
  /// What a callback could not write, such as a checkpoint on a full disk: training went on.
  std::vector<std::string> not_written;

  /// The values of one number, epoch by epoch; NaN where an epoch had none.
  std::vector<double> Of(const std::string& name) const;
};

}  // namespace dtrun::models

#endif
