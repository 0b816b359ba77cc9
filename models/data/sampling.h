#ifndef DTRUN_MODELS_DATA_SAMPLING_H_
#define DTRUN_MODELS_DATA_SAMPLING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "models/random/philox.h"

namespace dtrun::models {

/// Pure functions that give the examples of a rank. An epoch is a permutation of all examples. It
/// is cut into global batches, and each global batch into one part per rank. So an epoch uses every
/// example exactly once. The examples of a global batch do not depend on the number of ranks.

/// The indices [begin, end).
struct Range {
  uint64_t begin = 0, end = 0;

  uint64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// The order in which epoch `epoch` uses the examples 0 .. count - 1: a permutation, the same on
/// every rank and machine. `count` is below 2^32.
std::vector<uint32_t> EpochOrder(uint64_t seed, uint64_t epoch, uint64_t count);
/// Writes the same order to `order`, which has `count` entries.
void WriteEpochOrder(uint64_t seed, uint64_t epoch, std::span<uint32_t> order);

/// The sequence of random numbers for one shuffle: a pure function of seed and epoch.
class ShuffleWords {
 public:
  ShuffleWords(uint64_t seed, uint64_t epoch);

  /// Returns a uniform number in [0, bound).
  uint32_t Below(uint32_t bound);

 private:
  uint32_t Next();

  PhiloxCounter counter_;
  PhiloxKey key_;
  std::array<uint32_t, 4> words_{};
  size_t used_ = 4;
};

/// The number of global batches in an epoch. A shorter last batch counts.
///   BatchesPerEpoch(10, 4) -> 3
uint64_t BatchesPerEpoch(uint64_t count, uint64_t global_batch);

/// The positions of global batch `step` in the epoch's order. The last batch may be shorter.
///   GlobalBatch(2, 10, 4) -> [8, 10)
Range GlobalBatch(uint64_t step, uint64_t count, uint64_t global_batch);

/// The part of `whole` that belongs to `rank` of `size`. Parts are contiguous and in rank order.
/// Their lengths differ by at most one.
///   PartOf([0, 10), 1, 3) -> [3, 6)
Range PartOf(const Range& whole, int rank, int size);

}  // namespace dtrun::models

#endif
