#ifndef DTRUN_MODELS_DATA_NODE_H_
#define DTRUN_MODELS_DATA_NODE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "models/data/cache_table.h"
#include "models/data/example_source.h"
#include "models/data/pipeline.h"

namespace dtrun::models {

/// The steps of a pipeline. Take, Skip and Repeat count batches behind a Batch, else examples.
struct SourceStep {
  SourcePtr source;
};
struct MapStep {
  MapFunction function;
};
struct TakeStep {
  uint64_t count;
};
struct SkipStep {
  uint64_t count;
};
struct ShardStep {
  uint64_t shards, index;
};
struct CacheStep {
  std::shared_ptr<CacheTables> tables;
};
struct ShuffleStep {
  ShuffleOptions options;
};
struct RepeatStep {
  uint64_t times;
};
struct BatchStep {
  uint64_t size;
  Remainder remainder;
};
struct PrefetchStep {
  uint64_t batches;
};

using Step = std::variant<
    SourceStep, MapStep, TakeStep, SkipStep, ShardStep, CacheStep, ShuffleStep, RepeatStep,
    BatchStep, PrefetchStep>;

/// A step and what comes before it (null before the source).
struct Pipeline::Node {
  Step step;
  std::shared_ptr<const Node> input;
  ExampleShape shape;  ///< of its output

  template <typename S>
  const S* as() const {
    return std::get_if<S>(&step);
  }
};

using Node = Pipeline::Node;

/// The nearest step of a kind, from `node` backwards; null if there is none.
template <typename S>
const S* Find(const Node* node) {
  for (; node != nullptr; node = node->input.get()) {
    if (const S* step = node->as<S>()) return step;
  }
  return nullptr;
}

const ExampleSource& SourceOf(const Node& node);

/// Whether a Map stands between `node` and the source, or the Cache before it; `node` included.
bool ComputesSinceCache(const Node& node);

/// The files that a rank reads: those i with i % ranks == rank.
struct FileShare {
  int rank = 0, ranks = 1;
  bool operator==(const FileShare&) const = default;
  auto operator<=>(const FileShare&) const = default;
};

/// Examples of one epoch, when the source has the files of `share` only; kInfinite. No step up to
/// `node` is a Batch.
uint64_t CountOf(const Node& node, const FileShare& share);

/// Names the examples that come out of `node`, whatever their order and what is computed of them:
/// equal for equal examples of the same source.
std::string ExamplesOf(const Node& node);

/// What Skip and Repeat make of a count; kInfinite remains, and an overflow becomes, infinite.
uint64_t SkippedCount(uint64_t count, uint64_t skipped);
uint64_t RepeatedCount(uint64_t count, uint64_t times);

}  // namespace dtrun::models

#endif
