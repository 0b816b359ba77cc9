#ifndef DTRUN_MODELS_PROGRAM_PREPARATION_H_
#define DTRUN_MODELS_PROGRAM_PREPARATION_H_

#include <dtrun/context.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "models/data/image_dataset.h"
#include "models/gpu/gpu_replica.h"
#include "models/layers/sequential.h"
#include "models/optim/rate_optimizer.h"
#include "models/program/image_bytes.h"
#include "models/train/options.h"
#include "models/train/verdict.h"

namespace dtrun::models {

/// The GPU that a rank trains on.
struct PreparedGpu {
  std::unique_ptr<ImageBytes> train, test;
  std::unique_ptr<GpuReplica> replica;                  ///< null: it trains on the CPU
  bool streams_training = false, streams_test = false;  ///< what lies on the host, on any rank
  int index = 0, sharers = 1;     ///< ranks of this host on it, this one included
  bool shared_somewhere = false;  ///< by several ranks, on any host
  bool asked_for = false;         ///< no CPU instead
  std::string why_not;            ///< what keeps a GPU that there is from training; or ""
};

/// What a rank trains with.
struct Preparation {
  Verdict verdict;  ///< equal on all ranks
  /// As given, with the batch size that `auto` has come to, the device, and the strategy without
  /// the GPUs that it has named.
  TrainOptions options;
  std::optional<ImageDataset> data;  ///< like what follows: there when the verdict is kSuccess
  uint64_t global_batch = 0;
  int threads = 1;  ///< that this rank computes with
  std::unique_ptr<Sequential> model;
  std::unique_ptr<RateOptimizer> optimizer;
  PreparedGpu gpu;
};

/// The network that the options name, for examples like these and batches of at most `share` of
/// them. Throws Error kInvalidArgument.
std::unique_ptr<Sequential> MakeModel(
    const DatasetInfo& data, uint64_t share, const TrainOptions& options);

/// Threads that this rank computes with.
int ComputeThreads(const TrainOptions& options, const Context& job);

/// Collective. Everything that can be wrong is found here, and told by the verdict.
Preparation Prepare(const ParsedOptions& parsed, Context& job);

}  // namespace dtrun::models

#endif
