#ifndef DTRUN_MODELS_TRAIN_CHUNK_PLAN_H_
#define DTRUN_MODELS_TRAIN_CHUNK_PLAN_H_

#include <cstdint>

namespace dtrun::models {

/// How a rank's share of a batch goes through the network: see SequentialOptions.
struct ChunkPlan {
  int micro_batch = 1, micro_batches = 1;
  bool operator==(const ChunkPlan&) const = default;
};

/// Bytes of a core's second-level cache; 0 where the system does not tell.
uint64_t SecondLevelCacheBytes();

/// The most examples of a micro-batch that are fast with such a cache: 8 with 512 KiB, 16 with 1
/// MiB or an unknown one, 32 with 2 MiB.
uint64_t LargestMicroBatch(uint64_t cache_bytes);

/// Cuts `examples` into as few chunks of at most 128 as possible, of about equal size, and these
/// into micro-batches likewise: what fills the last ones up is computed in vain. Equal on all ranks
/// whose CPUs have equal caches. With 1 MiB:
///   PlanChunks(1024) -> {16, 8}: 8 chunks of 128      PlanChunks(100) -> {15, 7}: 1 chunk of 105
ChunkPlan PlanChunks(uint64_t examples, uint64_t cache_bytes = SecondLevelCacheBytes());

}  // namespace dtrun::models

#endif
