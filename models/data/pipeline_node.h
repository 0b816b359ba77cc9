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

/// A reference to one example, before any function computes values of it. `example` is the number
/// in the source, or behind a Cache the position in its table. `epoch` is the number of the pass.
struct ExampleRef {
  uint64_t example = 0, epoch = 0;
};

/// The contents of a Cache. Thread-safe.
class CacheTable {
 public:
  /// `refs` are the examples of the first pass of the steps before the Cache. Each entry has room
  /// for `floats` floats. 0: no Map stands between this Cache and its source or previous Cache, so
  /// the table keeps no values.
  CacheTable(std::vector<ExampleRef> refs, size_t floats);

  uint64_t count() const { return refs_.size(); }
  const ExampleRef& ref(uint64_t position) const { return refs_[position]; }

  /// Copies the values and the label at `position`. Returns false if they are not stored yet.
  bool Find(uint64_t position, float* values, int32_t* label);
  /// Stores the values, unless another thread already has.
  void Store(uint64_t position, const float* values, int32_t label);
  /// True if the table keeps values.
  bool keeps_values() const { return floats_ > 0; }

 private:
  std::vector<ExampleRef> refs_;
  size_t floats_;
  std::mutex mutex_;
  std::vector<float> values_;
  std::vector<int32_t> labels_;
  std::vector<uint8_t> there_;
};

/// The tables of one Cache, one for each share of the files.
class CacheTables {
 public:
  std::shared_ptr<CacheTable> Get(
      const std::pair<int, int>& share, const std::function<std::shared_ptr<CacheTable>()>& make);

 private:
  std::mutex mutex_;
  std::map<std::pair<int, int>, std::shared_ptr<CacheTable>> tables_;
};

/// Pointers to one stored example: `bytes` or `floats`. The other pointer is null.
struct ExampleRow {
  const uint8_t* bytes = nullptr;
  const float* floats = nullptr;
  int32_t label = 0;
};

/// Labelled examples of one shape, in one or more files or in memory. Memory counts as one file.
/// Thread-safe.
class ExampleSource {
 public:
  virtual ~ExampleSource() = default;

  const ExampleShape& shape() const { return shape_; }
  uint64_t count() const { return file_begins_.back(); }
  uint64_t files() const { return file_begins_.size() - 1; }
  /// The examples of file i are [file_begins()[i], file_begins()[i + 1]).
  const std::vector<uint64_t>& file_begins() const { return file_begins_; }

  /// Identifies this source: the names of its files, or a digest.
  virtual std::string identity() const = 0;
  /// Reads a file into memory, unless it is loaded. Throws Error.
  virtual void Load(uint64_t /*file*/) const {}
  /// The file of `example` must be loaded. The row lives as long as the source.
  virtual ExampleRow Row(uint64_t example) const = 0;

 protected:
  /// `file_sizes` are the numbers of examples in the files.
  ExampleSource(const ExampleShape& shape, const std::vector<uint64_t>& file_sizes);

 private:
  ExampleShape shape_;
  std::vector<uint64_t> file_begins_;
};

/// The shape of examples of `dims` (N, ...), as in Pipeline::FromMemory. Throws Error
/// kInvalidArgument.
ExampleShape ShapeOfDims(const std::vector<uint64_t>& dims);

using SourcePtr = std::shared_ptr<const ExampleSource>;

SourcePtr MemorySource(
    const std::vector<uint64_t>& dims, std::vector<float> values, std::vector<int32_t> labels);
SourcePtr MemorySource(
    const std::vector<uint64_t>& dims, std::vector<uint8_t> bytes, std::vector<int32_t> labels);
/// `bytes` (count, shape) and `labels` (count) in memory that `owner` keeps alive.
SourcePtr MappedSource(
    const ExampleShape& shape, uint64_t count, const uint8_t* bytes, const uint8_t* labels,
    std::shared_ptr<const void> owner);
SourcePtr FileSource(const std::vector<IdxFiles>& files);

/// The steps of a pipeline. Behind a Batch, Take, Skip and Repeat count batches; else examples.
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

/// A step and the node before it. The node of the source has none.
struct Pipeline::Node {
  Step step;
  std::shared_ptr<const Node> input;
  ExampleShape shape;  ///< of the output

  template <typename S>
  const S* as() const {
    return std::get_if<S>(&step);
  }
};

using Node = Pipeline::Node;

/// The nearest step of a kind, from `node` backwards. Null if there is none.
template <typename S>
const S* Find(const Node* node) {
  for (; node != nullptr; node = node->input.get()) {
    if (const S* step = node->as<S>()) return step;
  }
  return nullptr;
}

const ExampleSource& SourceOf(const Node& node);

/// True if `node` or a step before it is a Map, back to the source or the nearest Cache.
bool ComputesSinceCache(const Node& node);

/// The files that a rank reads: the files i with i % ranks == rank.
struct FileShare {
  int rank = 0, ranks = 1;
  bool operator==(const FileShare&) const = default;
  auto operator<=>(const FileShare&) const = default;
};

/// Examples in one epoch, with only the files of `share`; or kInfinite. No step up to `node` is a
/// Batch.
uint64_t CountOf(const Node& node, const FileShare& share);

/// Identifies the set of examples that come out of `node`, without their order and values. Equal
/// examples of the same source give equal text.
std::string ExamplesOf(const Node& node);

/// The count after Skip and after Repeat. kInfinite stays kInfinite. An overflow becomes kInfinite.
uint64_t SkippedCount(uint64_t count, uint64_t skipped);
uint64_t RepeatedCount(uint64_t count, uint64_t times);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_DATA_PIPELINE_NODE_H_
