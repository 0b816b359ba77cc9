#ifndef DTRUN_MODELS_DATA_PIPELINE_H_
#define DTRUN_MODELS_DATA_PIPELINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/data/dataset.h"

namespace dtrun::models {

/// The shape of one example's input, channels last. A flat input is 1 x 1 x channels.
struct ExampleShape {
  int height = 1, width = 1, channels = 1;

  size_t count() const { return size_t(height) * size_t(width) * size_t(channels); }
  bool operator==(const ExampleShape&) const = default;
};

/// A place between two batches of a training run: `batch` batches of epoch `epoch` (from 0) are
/// done. A checkpoint needs only the pipeline and the position to continue with the same examples.
struct Position {
  uint64_t epoch = 0, batch = 0;
  bool operator==(const Position&) const = default;
};

/// One rank's part of one global batch. It belongs to its Iterator, which reuses its memory.
/// Reading is thread-safe, except for the first call of `inputs()`.
class Batch {
 public:
  /// The examples of this rank. May be 0: the last batch may have fewer examples than ranks.
  uint64_t size() const { return size_; }
  /// The examples of all ranks together. Divide a sum of losses by it.
  uint64_t global_size() const { return global_size_; }
  /// The position of this rank's first example in the global batch. Random numbers that use it,
  /// such as dropout masks, do not depend on the number of ranks.
  uint64_t first_position() const { return first_position_; }
  /// The epoch, and the number of its batches before this batch.
  const Position& position() const { return position_; }

  const ExampleShape& shape() const { return shape_; }
  /// The classes, of shape (size).
  std::span<const int32_t> labels() const { return {labels_.data(), size_}; }
  /// The number of each example in the source, from 0, of shape (size).
  std::span<const uint64_t> numbers() const { return {numbers_.data(), size_}; }
  /// Writes the inputs of `count` examples, from `first` on, to `out`: (count, height, width,
  /// channels). Images that are stored as bytes become floats here, byte / 255, in one pass over
  /// the data set's memory. For a network that takes a batch in pieces.
  void CopyInputs(uint64_t first, uint64_t count, float* out) const;
  /// The inputs of all examples, (size, height, width, channels).
  const float* inputs() const;

 private:
  friend class BatchMaker;

  uint64_t size_ = 0, global_size_ = 0, first_position_ = 0;
  Position position_;
  ExampleShape shape_;
  std::vector<int32_t> labels_;
  std::vector<uint64_t> numbers_;
  // Without a Map: rows in the data set's own memory, bytes or floats. With a Map, and after
  // inputs(): floats_.
  struct Row {
    const uint8_t* bytes;
    const float* floats;
  };
  std::vector<Row> rows_;
  mutable std::vector<float> floats_;
  mutable bool has_floats_ = false;
  std::shared_ptr<const void> pipeline_;  // keeps the rows alive
};

/// One example as the argument of a MapFunction.
struct MapCall {
  const float* input;  ///< of `shape`
  float* output;       ///< of the Map's output shape, in other memory than `input`
  ExampleShape shape;
  int32_t* label;  ///< the function may change it
  /// The number of the example, and the number of the pass through the data (from 0). Random
  /// numbers may depend only on these two. Then they do not depend on ranks or threads.
  uint64_t example, epoch;
};

/// A pure function of the fields of MapCall. Several threads may call it at the same time, in any
/// order, and only for examples that this rank uses. Iterator::Next throws its exceptions.
using MapFunction = std::function<void(const MapCall&)>;

/// The IDX file of images and the IDX file of their labels, each gzipped or not.
/// Sharding::kFile deals whole files to the ranks.
struct IdxFiles {
  std::string images, labels;
};

/// As an argument of Repeat: without end. As a count: the pipeline has no end.
inline constexpr uint64_t kInfinite = UINT64_MAX;

struct ShuffleOptions {
  /// The number of examples in the buffer. Each draw takes a random example of the buffer, and the
  /// next example replaces it. If the buffer holds all examples, every order is equally likely.
  uint64_t buffer = kInfinite;
  uint64_t seed = 1;
  bool reshuffle_each_epoch = true;  ///< false: the same order in every epoch
};

enum class Remainder {
  kKeep,  ///< the last batch of an epoch may be smaller
  kDrop,  ///< a smaller last batch is left out
};

/// A description of the way from a source to batches. The steps follow in the order of the calls,
/// and mean the same as in tf.data. Immutable and cheap to copy. Reads no data yet. Thread-safe.
///
///   Pipeline::FromFiles({{"train-images-idx3-ubyte", "train-labels-idx1-ubyte"}})
///       .Shuffle({.seed = 7})
///       .Map(RandomCrop(2, 7))
///       .Batch(1024)
///       .Prefetch(2);
///
/// Each function throws Error kInvalidArgument if its step is not valid at that place. The error
/// names the step.
class Pipeline {
 public:
  /// `values` has the shape `dims`, (N, ...), for N examples. One dimension after N: channels. Two:
  /// height, width. More: the last two are width and channels, and the product of the others is the
  /// height. Bytes become floats as byte / 255. Errors: no examples; a number of values or labels
  /// that differs from `dims`.
  static Pipeline FromMemory(
      const std::vector<uint64_t>& dims, std::vector<float> values, std::vector<int32_t> labels);
  static Pipeline FromMemory(
      const std::vector<uint64_t>& dims, std::vector<uint8_t> bytes, std::vector<int32_t> labels);
  /// Grey images. The pipeline keeps a reference to `images`.
  static Pipeline FromImages(std::shared_ptr<const Images> images);
  /// `bytes` (count, shape) and `labels` (count) in memory that `owner` keeps alive.
  static Pipeline FromMapped(
      const ExampleShape& shape, uint64_t count, const uint8_t* bytes, const uint8_t* labels,
      std::shared_ptr<const void> owner);
  /// The examples of the files, file by file. This function reads the headers. An Iterator reads
  /// the contents. Errors: those of ReadIdx; a pair of files with different numbers of images and
  /// labels; files with images of different sizes.
  static Pipeline FromFiles(const std::vector<IdxFiles>& files);

  /// Applies `function` to each example. The first form keeps the example's shape.
  Pipeline Map(MapFunction function) const;
  Pipeline Map(const ExampleShape& output, MapFunction function) const;
  /// The first `count` elements: examples before Batch, batches after it.
  Pipeline Take(uint64_t count) const;
  /// All elements except the first `count`: examples before Batch, batches after it.
  Pipeline Skip(uint64_t count) const;
  /// Every `shards`-th example, from number `index` on.
  Pipeline Shard(uint64_t shards, uint64_t index) const;
  /// Keeps the output of the steps before it. Each example passes through their functions only
  /// once, so random results stay as they were the first time.
  Pipeline Cache() const;
  Pipeline Shuffle(const ShuffleOptions& options) const;
  /// Repeats the elements `times` times in one epoch. After Shuffle: each repetition has every
  /// example once, in a new order. Before Shuffle: the buffer mixes examples of different
  /// repetitions. After Batch: no batch spans two repetitions.
  Pipeline Repeat(uint64_t times = kInfinite) const;
  /// Makes batches of `global_batch` examples of all ranks together.
  Pipeline Batch(uint64_t global_batch, Remainder remainder = Remainder::kKeep) const;
  /// A thread of the Iterator makes up to `batches` batches ahead.
  Pipeline Prefetch(uint64_t batches) const;

  /// The shape of one example, after all functions.
  const ExampleShape& shape() const;
  /// Examples in one epoch, before Batch; or kInfinite.
  uint64_t examples() const;
  /// Batches in one epoch; or kInfinite. 0 without a Batch.
  uint64_t batches() const;
  /// Examples in a full batch of all ranks. 0 without a Batch.
  uint64_t global_batch() const;
  /// The steps in words, for example "60000 examples of 28x28x1, shuffle buffer 60000 seed 7, batch
  /// 1024, prefetch 2".
  std::string description() const;

  /// The internal form of a pipeline; see pipeline_node.h.
  struct Node;
  explicit Pipeline(std::shared_ptr<const Node> node);
  const Node& node() const { return *node_; }
  const std::shared_ptr<const Node>& shared_node() const { return node_; }

 private:
  std::shared_ptr<const Node> node_;
};

/// Iterates over a pipeline's batches, epoch after epoch:
///
///   Iterator batches(pipeline);
///   for (int epoch = 0; epoch < 8; ++epoch)
///     while (const Batch* batch = batches.Next()) Train(*batch);
///
/// The batches are a pure function of the pipeline and the position. So a training run that starts
/// at a saved position continues with the same examples. After a warm-up, the iterator allocates no
/// memory. Not thread-safe. With Prefetch, the iterator owns a thread. Its destructor ends the
/// thread.
class Iterator {
 public:
  /// Iterates over whole batches, as for a single rank. The pipeline must have a Batch.
  explicit Iterator(const Pipeline& pipeline, const Position& start = {});
  Iterator(Iterator&&) noexcept;
  Iterator& operator=(Iterator&&) noexcept;
  ~Iterator();

  /// Returns the next batch, valid until the next call of a function of this object. Returns null
  /// at the end of an epoch; the next call starts the next epoch. Throws an error of reading or of
  /// a Map. Then the next call tries the same batch again.
  const Batch* Next();
  /// Continues at `position`, without reading or computing earlier examples. If `position` is
  /// behind the epoch's last batch, the epoch ends there.
  void Seek(const Position& position);
  /// The position of the batch that Next returns next.
  const Position& position() const;
  /// The seconds that callers waited in Next, since construction.
  double wait_seconds() const;

 private:
  friend class DistributedPipeline;
  class State;
  explicit Iterator(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Functions for Pipeline::Map. The random functions are pure functions of seed, epoch and example.

/// Mirrors an image left to right, with probability 1/2.
MapFunction RandomFlip(uint64_t seed);

/// Pads the image with `padding` zeros on each side and takes a random piece of the original size.
MapFunction RandomCrop(int padding, uint64_t seed);

/// (value - mean) / deviation, per channel. One entry serves all channels. Throws Error
/// kInvalidArgument if the numbers of entries differ or a deviation is not above 0.
MapFunction Normalize(std::vector<float> mean, std::vector<float> deviation);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_DATA_PIPELINE_H_
