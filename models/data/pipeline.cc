#include "models/data/pipeline.h"

#include <dtrun/error.h>

#include <algorithm>
#include <utility>

#include "models/data/batch_maker.h"
#include "models/data/dataset.h"
#include "models/data/pipeline_node.h"
#include "models/message_text.h"
#include "models/random/philox.h"

namespace dtrun::models {

namespace {

[[noreturn]] void Refuse(const Node& before, const std::string& what) {
  throw Error(
      ErrorCode::kInvalidArgument,
      Text(what, " (after ", Pipeline(std::make_shared<const Node>(before)).description(), ")"));
}

bool HasBatch(const Node& node) { return Find<BatchStep>(&node) != nullptr; }

// Throws if a step for single examples follows a Batch.
void ExpectNoBatch(const Node& node, const char* step) {
  if (HasBatch(node)) Refuse(node, Text(step, " after Batch: expected before Batch"));
}

uint64_t ExamplesBefore(const Node& node) { return CountOf(node, FileShare{}); }

template <typename S>
Pipeline Append(const std::shared_ptr<const Node>& input, S step, const ExampleShape& shape) {
  if (input->as<PrefetchStep>() != nullptr)
    Refuse(*input, "a step after Prefetch: expected Prefetch as the last step");
  return Pipeline(std::make_shared<const Node>(Node{std::move(step), input, shape}));
}

template <typename S>
Pipeline Append(const std::shared_ptr<const Node>& input, S step) {
  return Append(input, std::move(step), input->shape);
}

Pipeline FromSource(SourcePtr source) {
  const ExampleShape shape = source->shape();
  return Pipeline(
      std::make_shared<const Node>(Node{SourceStep{std::move(source)}, nullptr, shape}));
}

std::string NameOf(const ExampleShape& shape) {
  return Text(shape.height, "x", shape.width, "x", shape.channels);
}

std::string Times(uint64_t count) { return count == kInfinite ? "without end" : Text(count); }

struct Describer {
  const Node& node;

  std::string operator()(const SourceStep& s) const {
    const uint64_t files = s.source->files();
    return Text(
        s.source->count(), " examples of ", NameOf(node.shape),
        files == 1 ? "" : Text(" in ", files, " files"));
  }
  std::string operator()(const MapStep&) const {
    return node.shape == node.input->shape ? "map" : Text("map to ", NameOf(node.shape));
  }
  std::string operator()(const TakeStep& s) const { return Text("take ", s.count); }
  std::string operator()(const SkipStep& s) const { return Text("skip ", s.count); }
  std::string operator()(const ShardStep& s) const {
    return Text("shard ", s.index, " of ", s.shards);
  }
  std::string operator()(const CacheStep&) const { return "cache"; }
  std::string operator()(const ShuffleStep& s) const {
    return Text(
        "shuffle ", s.options.buffer == kInfinite ? "all" : Text("buffer ", s.options.buffer),
        " seed ", s.options.seed, s.options.reshuffle_each_epoch ? "" : " once");
  }
  std::string operator()(const RepeatStep& s) const { return Text("repeat ", Times(s.times)); }
  std::string operator()(const BatchStep& s) const {
    return Text("batch ", s.size, s.remainder == Remainder::kDrop ? " without remainder" : "");
  }
  std::string operator()(const PrefetchStep& s) const { return Text("prefetch ", s.batches); }
};

}  // namespace

Pipeline::Pipeline(std::shared_ptr<const Node> node) : node_(std::move(node)) {}

Pipeline Pipeline::FromMemory(
    const std::vector<uint64_t>& dims, std::vector<float> values, std::vector<int32_t> labels) {
  return FromSource(MemorySource(dims, std::move(values), std::move(labels)));
}

Pipeline Pipeline::FromMemory(
    const std::vector<uint64_t>& dims, std::vector<uint8_t> bytes, std::vector<int32_t> labels) {
  return FromSource(MemorySource(dims, std::move(bytes), std::move(labels)));
}

Pipeline Pipeline::FromImages(std::shared_ptr<const Images> images) {
  const Images& i = *images;
  if (i.count == 0 || i.pixels.size() != i.count * i.pixels_per_image() ||
      i.labels.size() != i.count) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            i.count, " images of ", i.height, "x", i.width, ": found ", i.pixels.size(),
            " bytes and ", i.labels.size(), " labels"));
  }
  return FromSource(MappedSource(
      {i.height, i.width, 1}, i.count, i.pixels.data(), i.labels.data(), std::move(images)));
}

Pipeline Pipeline::FromMapped(
    const ExampleShape& shape, uint64_t count, const uint8_t* bytes, const uint8_t* labels,
    std::shared_ptr<const void> owner) {
  return FromSource(MappedSource(shape, count, bytes, labels, std::move(owner)));
}

Pipeline Pipeline::FromFiles(const std::vector<IdxFiles>& files) {
  return FromSource(FileSource(files));
}

Pipeline Pipeline::Map(MapFunction function) const {
  return Map(node_->shape, std::move(function));
}

Pipeline Pipeline::Map(const ExampleShape& output, MapFunction function) const {
  ExpectNoBatch(*node_, "Map");
  if (!function) Refuse(*node_, "Map: found no function, expected one");
  if (output.height < 1 || output.width < 1 || output.channels < 1)
    Refuse(*node_, Text("Map to ", NameOf(output), ": expected sides of at least 1"));
  return Append(node_, MapStep{std::move(function)}, output);
}

Pipeline Pipeline::Take(uint64_t count) const { return Append(node_, TakeStep{count}); }

Pipeline Pipeline::Skip(uint64_t count) const { return Append(node_, SkipStep{count}); }

Pipeline Pipeline::Shard(uint64_t shards, uint64_t index) const {
  ExpectNoBatch(*node_, "Shard");
  if (index >= shards)
    Refuse(*node_, Text("Shard: found index ", index, ", expected below the ", shards, " shards"));
  return Append(node_, ShardStep{shards, index});
}

Pipeline Pipeline::Cache() const {
  ExpectNoBatch(*node_, "Cache");
  if (ExamplesBefore(*node_) == kInfinite)
    Refuse(
        *node_,
        "Cache after Repeat without end: expected Cache before Repeat, or a number of repetitions");
  return Append(node_, CacheStep{std::make_shared<CacheTables>()});
}

Pipeline Pipeline::Shuffle(const ShuffleOptions& options) const {
  constexpr uint64_t kLargest = UINT32_MAX;
  ExpectNoBatch(*node_, "Shuffle");
  const uint64_t waiting = std::min(options.buffer, ExamplesBefore(*node_));
  if (waiting == kInfinite)
    Refuse(*node_, "Shuffle of examples without end: expected a number for ShuffleOptions::buffer");
  if (options.buffer == 0 || waiting > kLargest) {
    Refuse(
        *node_, Text("Shuffle: found a buffer of ", options.buffer, ", expected 1 to ", kLargest));
  }
  return Append(node_, ShuffleStep{options});
}

Pipeline Pipeline::Repeat(uint64_t times) const {
  if (times == 0) Refuse(*node_, "Repeat: found 0 times, expected at least 1");
  return Append(node_, RepeatStep{times});
}

Pipeline Pipeline::Batch(uint64_t global_batch, Remainder remainder) const {
  constexpr uint64_t kLargest = 1 << 30;
  ExpectNoBatch(*node_, "Batch");
  if (global_batch == 0 || global_batch > kLargest)
    Refuse(*node_, Text("Batch: found ", global_batch, " examples, expected 1 to ", kLargest));
  return Append(node_, BatchStep{global_batch, remainder});
}

Pipeline Pipeline::Prefetch(uint64_t batches) const {
  constexpr uint64_t kMost = 1024;
  if (!HasBatch(*node_)) Refuse(*node_, "Prefetch before Batch: expected after Batch");
  if (batches == 0 || batches > kMost)
    Refuse(*node_, Text("Prefetch: found ", batches, " batches, expected 1 to ", kMost));
  return Append(node_, PrefetchStep{batches});
}

const ExampleShape& Pipeline::shape() const { return node_->shape; }

uint64_t Pipeline::examples() const {
  const Node* node = node_.get();
  if (HasBatch(*node)) {
    while (node->as<BatchStep>() == nullptr) node = node->input.get();
    node = node->input.get();
  }
  return ExamplesBefore(*node);
}

uint64_t Pipeline::batches() const {
  if (!HasBatch(*node_)) return 0;
  return BatchSizes(*node_, FileShare{}, global_batch()).batches();
}

uint64_t Pipeline::global_batch() const {
  const auto* batch = Find<BatchStep>(node_.get());
  return batch == nullptr ? 0 : batch->size;
}

std::string Pipeline::description() const {
  std::string text;
  for (const Node* n = node_.get(); n != nullptr; n = n->input.get())
    text = std::visit(Describer{*n}, n->step) + (text.empty() ? "" : ", " + text);
  return text;
}

void Batch::CopyInputs(uint64_t first, uint64_t count, float* out) const {
  const size_t stride = shape_.count();
  if (has_floats_) {
    std::copy_n(floats_.data() + first * stride, count * stride, out);
    return;
  }
  for (uint64_t i = first; i < first + count; ++i, out += stride) {
    if (rows_[i].bytes != nullptr) {
      BytesToFloats(rows_[i].bytes, stride, out);
    } else {
      std::copy_n(rows_[i].floats, stride, out);
    }
  }
}

const float* Batch::inputs() const {
  if (!has_floats_) {
    floats_.resize(size_ * shape_.count());
    CopyInputs(0, size_, floats_.data());
    has_floats_ = true;
  }
  return floats_.data();
}

namespace {

// The random domains, one for each function.
enum Augmentation : uint32_t { kFlip = 0, kCrop = 1 };

std::array<uint32_t, 4> RandomWords(uint64_t seed, Augmentation use, const MapCall& call) {
  // The counter has room for 32 bits of each number. The upper bits are mixed into the key.
  PhiloxKey key = KeyOfSeed(seed);
  key[0] ^= static_cast<uint32_t>(call.example >> 32);
  key[1] ^= static_cast<uint32_t>(call.epoch >> 32);
  return Philox4x32(
      {static_cast<uint32_t>(call.example), static_cast<uint32_t>(call.epoch), 0,
       RandomDomain(RandomUse::kAugmentation, use)},
      key);
}

// A number in [0, bound). Its distribution deviates from uniform by at most bound / 2^32.
int Below(uint32_t word, int bound) {
  return static_cast<int>(uint64_t{word} * static_cast<uint64_t>(bound) >> 32);
}

void FlipRows(const MapCall& call) {
  const auto width = static_cast<size_t>(call.shape.width);
  const auto channels = static_cast<size_t>(call.shape.channels);
  for (int h = 0; h < call.shape.height; ++h) {
    const float* row = call.input + static_cast<size_t>(h) * width * channels;
    float* out = call.output + static_cast<size_t>(h) * width * channels;
    for (size_t w = 0; w < width; ++w)
      std::copy_n(row + (width - 1 - w) * channels, channels, out + w * channels);
  }
}

// Output (h, w) is input (h + down, w + right), or 0 outside the image.
void Shift(const MapCall& call, int down, int right) {
  const int height = call.shape.height, width = call.shape.width, channels = call.shape.channels;
  const int begin = std::clamp(-right, 0, width), end = std::clamp(width - right, begin, width);
  std::fill_n(call.output, call.shape.count(), 0.0f);
  if (begin == end) return;
  for (int h = 0; h < height; ++h) {
    const int from = h + down;
    if (from < 0 || from >= height) continue;
    const float* row = call.input + (ptrdiff_t{from} * width + begin + right) * channels;
    std::copy_n(
        row, (end - begin) * channels, call.output + (ptrdiff_t{h} * width + begin) * channels);
  }
}

}  // namespace

MapFunction RandomFlip(uint64_t seed) {
  return [seed](const MapCall& call) {
    if (RandomWords(seed, kFlip, call)[0] >> 31) return FlipRows(call);
    std::copy_n(call.input, call.shape.count(), call.output);
  };
}

MapFunction RandomCrop(int padding, uint64_t seed) {
  constexpr int kMost = 1 << 15;
  if (padding < 0 || padding > kMost) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("RandomCrop: found a padding of ", padding, ", expected 0 to ", kMost));
  }
  return [padding, seed](const MapCall& call) {
    const auto words = RandomWords(seed, kCrop, call);
    const int places = 2 * padding + 1;
    Shift(call, Below(words[0], places) - padding, Below(words[1], places) - padding);
  };
}

MapFunction Normalize(std::vector<float> mean, std::vector<float> deviation) {
  if (mean.empty() || mean.size() != deviation.size()) {
    throw Error(
        ErrorCode::kInvalidArgument, Text(
                                         "Normalize: found ", mean.size(), " means and ",
                                         deviation.size(), " deviations, expected as many"));
  }
  for (const float d : deviation) {
    if (!(d > 0)) {
      throw Error(
          ErrorCode::kInvalidArgument,
          Text("Normalize: found a deviation of ", d, ", expected more than 0"));
    }
  }
  return [mean = std::move(mean), deviation = std::move(deviation)](const MapCall& call) {
    const size_t count = call.shape.count(), channels = mean.size();
    if (channels != 1 && channels != static_cast<size_t>(call.shape.channels)) {
      throw Error(
          ErrorCode::kInvalidArgument, Text(
                                           "Normalize: found ", channels, " means for ",
                                           call.shape.channels, " channels, expected as many"));
    }
    for (size_t i = 0, c = 0; i < count; ++i, c = c + 1 == channels ? 0 : c + 1)
      call.output[i] = (call.input[i] - mean[c]) / deviation[c];
  };
}

}  // namespace dtrun::models
