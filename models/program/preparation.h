#ifndef DTRUN_MODELS_PROGRAM_PREPARATION_H_
#define DTRUN_MODELS_PROGRAM_PREPARATION_H_

#include <dtrun/context.h>

#include <cstdint>
#include <memory>

#include "models/data/dataset.h"
#include "models/layers/sequential.h"
#include "models/optim/rate_optimizer.h"
#include "models/train/options.h"
#include "models/train/verdict.h"

namespace dtrun::models {

/// What a rank gets ready on its own before all ranks agree to start.
struct Preparation {
  Verdict verdict;
  Dataset data;
  uint64_t global_batch = 0;
  int threads = 1;  ///< that this rank computes with
  std::unique_ptr<Sequential> model;
  std::unique_ptr<RateOptimizer> optimizer;
};

/// Local. Everything that can be wrong is found here, and told by the verdict.
Preparation Prepare(const ParsedOptions& parsed, const Context& job);

}  // namespace dtrun::models

#endif
