#include "models/train/chunk_plan.h"

#include <unistd.h>

#include <algorithm>
#include <bit>

namespace dtrun::models {
namespace {

constexpr uint64_t kLargestChunk = 128;
constexpr uint64_t kCachePerExample = 64 << 10, kMiddleMicroBatch = 16;

uint64_t DivideUp(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

}  // namespace

// The limits suit network C: an example's activations take 230 kB, and per pass of the dense layers
// 14 MB of kernels and gradients come from memory. One training step of 1,024 images on one thread
// of a Zen 5 core (second-level cache of 1 MiB), us per image, micro-batch x micro-batches per
// chunk:
//   AVX-512  16x8 332, 8x16 336, 32x4 347, 32x1 353; oneDNN's primitives alone 312
//   AVX2     16x8 716, 8x16 710, 32x4 744
// The best sizes for 512 KiB and 2 MiB are scaled from these figures; they are not measured.
uint64_t LargestMicroBatch(uint64_t cache_bytes) {
  if (cache_bytes == 0) return kMiddleMicroBatch;
  return std::clamp(
      std::bit_floor(cache_bytes / kCachePerExample), kMiddleMicroBatch / 2, 2 * kMiddleMicroBatch);
}

uint64_t SecondLevelCacheBytes() {
  const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? static_cast<uint64_t>(bytes) : 0;
}

ChunkPlan PlanChunks(uint64_t examples, uint64_t cache_bytes) {
  const uint64_t n = std::max<uint64_t>(examples, 1);
  const uint64_t chunk = DivideUp(n, DivideUp(n, kLargestChunk));
  const uint64_t micro_batches = DivideUp(chunk, LargestMicroBatch(cache_bytes));
  return {static_cast<int>(DivideUp(chunk, micro_batches)), static_cast<int>(micro_batches)};
}

}  // namespace dtrun::models
