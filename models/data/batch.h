#ifndef DTRUN_MODELS_DATA_BATCH_H_
#define DTRUN_MODELS_DATA_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace dtrun::models {

/// One example's input, channels last. A flat one is 1 x 1 x channels.
struct ExampleShape {
  int height = 1, width = 1, channels = 1;

  size_t count() const { return size_t(height) * size_t(width) * size_t(channels); }
  bool operator==(const ExampleShape&) const = default;
};

/// A place between two batches of a training: `batch` batches of epoch `epoch` (from 0) are done.
/// With the pipeline it is all that a checkpoint needs in order to go on with the same examples.
struct Position {
  uint64_t epoch = 0, batch = 0;
  bool operator==(const Position&) const = default;
};

/// One rank's part of one global batch. Belongs to its Iterator, which uses its memory again.
/// Reading is thread-safe, but for the first call of `inputs()`.
class Batch {
 public:
  /// Examples of this rank. None is possible: the last batch may have fewer examples than ranks.
  uint64_t size() const { return size_; }
  /// Of all ranks together: what the sum of the losses is divided by.
  uint64_t global_size() const { return global_size_; }
  /// Of this rank's first example in the global batch: with it dropout masks and the like do not
  /// depend on the number of ranks.
  uint64_t first_position() const { return first_position_; }
  /// Epoch, and batches of it before this one.
  const Position& position() const { return position_; }

  const ExampleShape& shape() const { return shape_; }
  /// (size): classes.
  std::span<const int32_t> labels() const { return {labels_.data(), size_}; }
  /// Writes the inputs of `count` examples from `first` on to `out`, (count, height, width,
  /// channels). Images that are still bytes become floats here, byte / 255, in one pass over memory
  /// of the data set: for a network that takes a batch in pieces.
  void CopyInputs(uint64_t first, uint64_t count, float* out) const;
  /// The inputs of all examples, (size, height, width, channels).
  const float* inputs() const;

 private:
  friend class BatchMaker;

  uint64_t size_ = 0, global_size_ = 0, first_position_ = 0;
  Position position_;
  ExampleShape shape_;
  std::vector<int32_t> labels_;
  // Where nothing is computed: rows in the data set's own memory, bytes or floats. Else, and after
  // inputs(): floats.
  struct Row {
    const uint8_t* bytes;
    const float* floats;
  };
  std::vector<Row> rows_;
  mutable std::vector<float> floats_;
  mutable bool has_floats_ = false;
  std::shared_ptr<const void> pipeline_;  // keeps the rows alive
};

}  // namespace dtrun::models

#endif
