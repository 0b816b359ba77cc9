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

/// One example on its way through a Map.
struct MapCall {
  const float* input;  ///< of `shape`
  float* output;       ///< of the Map's output shape; never the input's memory
  ExampleShape shape;
  int32_t* label;  ///< may be changed
  /// Which example it is, and for the how many-th time the data is passed through (from 0): all
  /// that random numbers may depend on, so that they do not depend on ranks or threads.
  uint64_t example, epoch;
};

/// A pure function of what MapCall holds. It is called from any thread, several at a time, in any
/// order, for examples that this rank uses only. What it throws arrives at Iterator::Next.
using MapFunction = std::function<void(const MapCall&)>;

/// An image file and its labels' file, IDX, each gzipped or not. The ranks may deal whole files
/// among each other (Sharding::kFile).
struct IdxFiles {
  std::string images, labels;
};

/// For Repeat: without end. For counts: of a pipeline that has none.
inline constexpr uint64_t kInfinite = UINT64_MAX;

struct ShuffleOptions {
  /// As many examples wait in a buffer, from which one is drawn at random and replaced by the next.
  /// A buffer that holds all makes every order equally likely.
  uint64_t buffer = kInfinite;
  uint64_t seed = 1;
  bool reshuffle_each_epoch = true;  ///< or the same order in every epoch
};

enum class Remainder {
  kKeep,  ///< the last batch of an epoch holds what is left
  kDrop,  ///< and is left out, unless it is full
};

/// Where batches come from: a source and what is done with its examples, in the order of the calls,
/// with the meaning that tf.data gives to them. A description: immutable, cheap to copy, reads no
/// data yet. Thread-safe.
///
///   Pipeline::FromFiles({{"train-images-idx3-ubyte", "train-labels-idx1-ubyte"}})
///       .Shuffle({.seed = 7})
///       .Map(RandomCrop(2, 7))
///       .Batch(1024)
///       .Prefetch(2);
///
/// Each function throws Error kInvalidArgument, naming the step, when it cannot stand there.
class Pipeline {
 public:
  /// `values` has the shape `dims`, whose first entry counts the examples: (N, ...). Of the others
  /// the last are height, width and channels; two are (height, width), one is channels, and of more
  /// the first are one with height. Bytes become floats as byte / 255.
  /// Errors: no examples; another number of values or labels than `dims` says.
  static Pipeline FromMemory(
      const std::vector<uint64_t>& dims, std::vector<float> values, std::vector<int32_t> labels);
  static Pipeline FromMemory(
      const std::vector<uint64_t>& dims, std::vector<uint8_t> bytes, std::vector<int32_t> labels);
  /// Grey images that somebody else keeps.
  static Pipeline FromImages(std::shared_ptr<const Images> images);
  /// `bytes` (count, shape) and `labels` (count) in memory that `owner` keeps.
  static Pipeline FromMapped(
      const ExampleShape& shape, uint64_t count, const uint8_t* bytes, const uint8_t* labels,
      std::shared_ptr<const void> owner);
  /// The files' examples one after the other. Their headers are read at once, their content when
  /// somebody iterates. Errors: those of ReadIdx; files of which images and labels are not of equal
  /// number, or the images not of equal size.
  static Pipeline FromFiles(const std::vector<IdxFiles>& files);

  /// A function of one example, whose output has the shape of its input, or another one.
  Pipeline Map(MapFunction function) const;
  Pipeline Map(const ExampleShape& output, MapFunction function) const;
  /// The first `count`: examples before Batch, batches after it.
  Pipeline Take(uint64_t count) const;
  /// All but the first `count`: likewise.
  Pipeline Skip(uint64_t count) const;
  /// Every `shards`-th example, from number `index` on.
  Pipeline Shard(uint64_t shards, uint64_t index) const;
  /// What was computed before it is kept: each example passes through the functions before it
  /// once, and what was random there remains as it was the first time.
  Pipeline Cache() const;
  Pipeline Shuffle(const ShuffleOptions& options) const;
  /// The same again, `times` times in one epoch. After Shuffle: each repetition holds every example
  /// once, in an order of its own. Before Shuffle: the buffer mixes examples of different
  /// repetitions. After Batch: no batch spans two repetitions.
  Pipeline Repeat(uint64_t times = kInfinite) const;
  /// Examples of all ranks together in one batch.
  Pipeline Batch(uint64_t global_batch, Remainder remainder = Remainder::kKeep) const;
  /// A thread of its own makes up to `batches` batches before they are asked for.
  Pipeline Prefetch(uint64_t batches) const;

  /// Of one example, after all functions.
  const ExampleShape& shape() const;
  /// Of one epoch, before Batch; kInfinite.
  uint64_t examples() const;
  /// Of one epoch; kInfinite. 0 without a Batch.
  uint64_t batches() const;
  /// 0 without a Batch.
  uint64_t global_batch() const;
  /// "60000 examples of 28x28x1, shuffle buffer 60000 seed 7, batch 1024, prefetch 2"
  std::string description() const;

  /// What the parts of this folder work with.
  struct Node;
  explicit Pipeline(std::shared_ptr<const Node> node);
  const Node& node() const { return *node_; }
  const std::shared_ptr<const Node>& shared_node() const { return node_; }

 private:
  std::shared_ptr<const Node> node_;
};

/// Runs through a pipeline's batches, epoch after epoch:
///
///   Iterator batches(pipeline);
///   for (int epoch = 0; epoch < 8; ++epoch)
///     while (const Batch* batch = batches.Next()) Train(*batch);
///
/// What it returns is a pure function of the pipeline and the position, so that a training which
/// starts at a position of an earlier one goes on with the same examples. In the steady state
/// nothing is allocated. Not thread-safe. With Prefetch a thread works for it, which ends with it.
class Iterator {
 public:
  /// All batches whole: the world of one rank. The pipeline has to have a Batch.
  explicit Iterator(const Pipeline& pipeline, const Position& start = {});
  Iterator(Iterator&&) noexcept;
  Iterator& operator=(Iterator&&) noexcept;
  ~Iterator();

  /// The next batch, valid until the next call of a function of this object; null at the end of an
  /// epoch, after which the next call begins the next one. Throws what reading or a Map threw; the
  /// next call would try that batch again.
  const Batch* Next();
  /// Goes on from there: no example is read or computed in order to get there. A batch behind the
  /// epoch's last is its end.
  void Seek(const Position& position);
  /// Of the batch that Next would return.
  const Position& position() const;
  /// For how long Next has made its callers wait, since construction.
  double wait_seconds() const;

 private:
  friend class DistributedPipeline;
  class State;
  explicit Iterator(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Functions for Pipeline::Map. The random ones are pure functions of seed, epoch and example.

/// Mirrors an image left to right, with probability 1/2.
MapFunction RandomFlip(uint64_t seed);

/// A piece as large as the image, from a random place of the image with `padding` zeros on each
/// side.
MapFunction RandomCrop(int padding, uint64_t seed);

/// (value - mean) / deviation, by channel; one entry is for all channels. Throws Error
/// kInvalidArgument when they are of different numbers, or a deviation is not above 0.
MapFunction Normalize(std::vector<float> mean, std::vector<float> deviation);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_DATA_PIPELINE_H_
