#ifndef DTRUN_MODELS_DATA_EXAMPLE_SOURCE_H_
#define DTRUN_MODELS_DATA_EXAMPLE_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/data/batch.h"
#include "models/data/pipeline.h"

namespace dtrun::models {

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

}  // namespace dtrun::models

#endif
