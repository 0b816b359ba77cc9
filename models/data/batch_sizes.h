#ifndef DTRUN_MODELS_DATA_BATCH_SIZES_H_
#define DTRUN_MODELS_DATA_BATCH_SIZES_H_

#include <cstdint>
#include <vector>

#include "models/data/node.h"

namespace dtrun::models {

/// How many examples each batch of an epoch has: all that other ranks need to know of a rank's
/// pipeline. Plain numbers, so that ranks can exchange it.
class BatchSizes {
 public:
  /// Of the batches that `node` makes of the examples of `share`, with `batch` examples in a full
  /// one. `node` has a Batch.
  BatchSizes(const Node& node, const FileShare& share, uint64_t batch);
  /// What `Pack` returned.
  explicit BatchSizes(const std::vector<uint64_t>& packed);

  std::vector<uint64_t> Pack() const { return numbers_; }

  /// Examples of a full batch.
  uint64_t full_batch() const { return numbers_[kBatch]; }
  /// Of one epoch; kInfinite.
  uint64_t batches() const;
  /// Examples of a batch; 0 behind the last one.
  uint64_t size(uint64_t batch) const;

 private:
  enum class Kind : uint64_t { kTake, kSkip, kRepeat };
  static constexpr size_t kExamples = 0, kBatch = 1, kDrops = 2, kFirstStep = 3;

  uint64_t BatchesBefore(size_t step) const;

  // Examples, batch, whether a rest is dropped; then kind and number of each step behind Batch.
  std::vector<uint64_t> numbers_;
};

}  // namespace dtrun::models

#endif
