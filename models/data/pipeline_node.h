#ifndef DTRUN_MODELS_DATA_PIPELINE_NODE_H_
#define DTRUN_MODELS_DATA_PIPELINE_NODE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "models/data/pipeline.h"

namespace dtrun::models {

/// An example on its way through a pipeline, before anything is computed of it: its number in the
/// source or, behind a Cache, among what is kept; and which pass through that it is.
struct ExampleRef {
  uint64_t example = 0, epoch = 0;
};

/// What a Cache keeps. Thread-safe.
class CacheTable {
 public:
  /// `refs`: what comes out of the steps before the Cache in their first pass. `floats` of each
  /// example are kept; 0: nothing is computed there.
  CacheTable(std::vector<ExampleRef> refs, size_t floats);

  uint64_t count() const { return refs_.size(); }
  const ExampleRef& ref(uint64_t position) const { return refs_[position]; }

  /// Copies the values and the label at `position`; false if they are not there yet.
  bool Find(uint64_t position, float* values, int32_t* label);
  /// Keeps them, unless somebody else was faster.
  void Store(uint64_t position, const float* values, int32_t label);
  /// Whether it keeps values at all.
  bool keeps_values() const { return floats_ > 0; }

 private:
  std::vector<ExampleRef> refs_;
  size_t floats_;
  std::mutex mutex_;
  std::vector<float> values_;
  std::vector<int32_t> labels_;
  std::vector<uint8_t> there_;
};

/// The tables of one Cache: one for each share of the files that somebody passes through it.
class CacheTables {
 public:
  std::shared_ptr<CacheTable> Get(
      const std::pair<int, int>& share, const std::function<std::shared_ptr<CacheTable>()>& make);

 private:
  std::mutex mutex_;
  std::map<std::pair<int, int>, std::shared_ptr<CacheTable>> tables_;
};

/// One example where it lies: bytes or floats, the other is null.
struct ExampleRow {
  const uint8_t* bytes = nullptr;
  const float* floats = nullptr;
  int32_t label = 0;
};

/// Labelled examples of one shape, in one or more files, or in memory, which counts as one file.
/// Thread-safe.
class ExampleSource {
 public:
  virtual ~ExampleSource() = default;

  const ExampleShape& shape() const { return shape_; }
  uint64_t count() const { return file_begins_.back(); }
  uint64_t files() const { return file_begins_.size() - 1; }
  /// The examples of file i are [file_begins()[i], file_begins()[i + 1]).
  const std::vector<uint64_t>& file_begins() const { return file_begins_; }

  /// Tells this source from others: names of files, or a digest.
  virtual std::string identity() const = 0;
  /// Reads a file into memory, unless it is there. Throws Error.
  virtual void Load(uint64_t /*file*/) const {}
  /// Of a file that is loaded. Lives as long as the source.
  virtual ExampleRow Row(uint64_t example) const = 0;

 protected:
  /// `file_sizes`: examples of each file.
  ExampleSource(const ExampleShape& shape, const std::vector<uint64_t>& file_sizes);

 private:
  ExampleShape shape_;
  std::vector<uint64_t> file_begins_;
};

/// Of `dims` (N, ...), as Pipeline::FromMemory says. Throws Error kInvalidArgument.
ExampleShape ShapeOfDims(const std::vector<uint64_t>& dims);

using SourcePtr = std::shared_ptr<const ExampleSource>;

SourcePtr MemorySource(
    const std::vector<uint64_t>& dims, std::vector<float> values, std::vector<int32_t> labels);
SourcePtr MemorySource(
    const std::vector<uint64_t>& dims, std::vector<uint8_t> bytes, std::vector<int32_t> labels);
/// (count, shape) bytes and (count) labels in memory that `owner` keeps.
SourcePtr MappedSource(
    const ExampleShape& shape, uint64_t count, const uint8_t* bytes, const uint8_t* labels,
    std::shared_ptr<const void> owner);
SourcePtr FileSource(const std::vector<IdxFiles>& files);

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

#endif  // DTRUN_MODELS_DATA_PIPELINE_NODE_H_
