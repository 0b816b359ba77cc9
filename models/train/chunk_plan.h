#ifndef DTRUN_MODELS_TRAIN_CHUNK_PLAN_H_
#define DTRUN_MODELS_TRAIN_CHUNK_PLAN_H_

#include <cstdint>

namespace dtrun::models {

/// How a rank's share of a batch goes through the network: see SequentialOptions.
struct ChunkPlan {
  int micro_batch = 1, micro_batches = 1;
  bool operator==(const ChunkPlan&) const = default;
};

/// Cuts `examples` into as few chunks as possible of about equal size, and these into micro-batches
/// likewise: what fills the last ones up is computed in vain.
///   PlanChunks(1024) -> {16, 8}: 8 chunks of 128      PlanChunks(100) -> {15, 7}: 1 chunk of 105
ChunkPlan PlanChunks(uint64_t examples);

}  // namespace dtrun::models

#endif
