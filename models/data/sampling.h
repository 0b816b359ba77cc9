#ifndef DTRUN_MODELS_DATA_SAMPLING_H_
#define DTRUN_MODELS_DATA_SAMPLING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "models/random/philox.h"

namespace dtrun::models {

/// Which examples a rank trains on, as pure functions: an epoch is a permutation of all examples,
/// cut into global batches, each cut into one part per rank. So every example is used exactly once
/// per epoch, and a global batch holds the same examples however many ranks share it.

/// Indices [begin, end).
struct Range {
  uint64_t begin = 0, end = 0;

  uint64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// The order in which epoch `epoch` uses the examples 0 .. count - 1: a permutation, equal on every
/// rank and machine. count is below 2^32.
std::vector<uint32_t> EpochOrder(uint64_t seed, uint64_t epoch, uint64_t count);
/// The same, written to `order`, which has `count` entries.
void WriteEpochOrder(uint64_t seed, uint64_t epoch, std::span<uint32_t> order);

/// The random numbers of one shuffle, in order: a pure function of seed and epoch.
class ShuffleWords {
 public:
  ShuffleWords(uint64_t seed, uint64_t epoch);

  /// Uniform in [0, bound).
  uint32_t Below(uint32_t bound);

 private:
  uint32_t Next();

  PhiloxCounter counter_;
  PhiloxKey key_;
  std::array<uint32_t, 4> words_{};
  size_t used_ = 4;
};

/// Global batches of an epoch, the ragged last one included.
///   BatchesPerEpoch(10, 4) -> 3
uint64_t BatchesPerEpoch(uint64_t count, uint64_t global_batch);

/// Positions in the epoch's order that global batch `step` holds; the last may be shorter.
///   GlobalBatch(2, 10, 4) -> [8, 10)
Range GlobalBatch(uint64_t step, uint64_t count, uint64_t global_batch);

/// The part of `whole` that belongs to `rank` of `size`: contiguous, in rank order, and of lengths
/// that differ by at most one.
///   PartOf([0, 10), 1, 3) -> [3, 6)
Range PartOf(const Range& whole, int rank, int size);

}  // namespace dtrun::models

#endif
