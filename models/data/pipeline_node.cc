#include "models/data/pipeline_node.h"

#include <dtrun/error.h>
#include <zlib.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <type_traits>
#include <utility>

#include "models/data/dataset.h"
#include "models/message_text.h"

namespace dtrun::models {
namespace {

uint64_t CountOfFiles(const ExampleSource& source, const FileShare& share) {
  uint64_t count = 0;
  for (auto file = static_cast<uint64_t>(share.rank); file < source.files();
       file += static_cast<uint64_t>(share.ranks))
    count += source.file_begins()[file + 1] - source.file_begins()[file];
  return count;
}

// The number of elements behind a step, from the number before it.
struct Counter {
  uint64_t count;

  uint64_t operator()(const TakeStep& take) const { return std::min(count, take.count); }
  uint64_t operator()(const SkipStep& skip) const { return SkippedCount(count, skip.count); }
  uint64_t operator()(const ShardStep& shard) const {
    if (count == kInfinite || count <= shard.index) return count == kInfinite ? kInfinite : 0;
    return (count - shard.index - 1) / shard.shards + 1;
  }
  uint64_t operator()(const RepeatStep& repeat) const { return RepeatedCount(count, repeat.times); }
  template <typename Other>
  uint64_t operator()(const Other&) const {
    return count;
  }
};

}  // namespace

const ExampleSource& SourceOf(const Node& node) { return *Find<SourceStep>(&node)->source; }

bool ComputesSinceCache(const Node& node) {
  for (const Node* n = &node; n != nullptr && n->as<CacheStep>() == nullptr; n = n->input.get()) {
    if (n->as<MapStep>() != nullptr) return true;
  }
  return false;
}

// A shuffle matters only if a later step takes some of the examples.
std::string ExamplesOf(const Node& node) {
  std::string text;
  bool picked = false;
  for (const Node* n = &node; n != nullptr; n = n->input.get()) {
    const auto add = [&](const std::string& step) { text = step + text; };
    if (const auto* source = n->as<SourceStep>()) add(source->source->identity());
    if (const auto* take = n->as<TakeStep>()) add(Text(", take ", take->count));
    if (const auto* skip = n->as<SkipStep>()) add(Text(", skip ", skip->count));
    if (const auto* shard = n->as<ShardStep>())
      add(Text(", shard ", shard->index, " of ", shard->shards));
    const auto* shuffle = n->as<ShuffleStep>();
    if (shuffle != nullptr && picked)
      add(Text(", shuffle ", shuffle->options.buffer, " ", shuffle->options.seed));
    picked |= n->as<TakeStep>() || n->as<SkipStep>() || n->as<ShardStep>();
  }
  return text;
}

uint64_t SkippedCount(uint64_t count, uint64_t skipped) {
  return count == kInfinite ? kInfinite : count - std::min(count, skipped);
}

uint64_t RepeatedCount(uint64_t count, uint64_t times) {
  if (count == 0 || times == 0) return 0;
  return count > kInfinite / times ? kInfinite : count * times;
}

uint64_t CountOf(const Node& node, const FileShare& share) {
  if (const auto* source = node.as<SourceStep>()) return CountOfFiles(*source->source, share);
  return std::visit(Counter{CountOf(*node.input, share)}, node.step);
}

CacheTable::CacheTable(std::vector<ExampleRef> refs, size_t floats)
    : refs_(std::move(refs)), floats_(floats), there_(floats > 0 ? refs_.size() : 0) {}

bool CacheTable::Find(uint64_t position, float* values, int32_t* label) {
  const std::lock_guard lock(mutex_);
  if (there_[position] == 0) return false;
  std::copy_n(values_.data() + position * floats_, floats_, values);
  *label = labels_[position];
  return true;
}

void CacheTable::Store(uint64_t position, const float* values, int32_t label) {
  const std::lock_guard lock(mutex_);
  if (there_[position] != 0) return;
  if (values_.empty()) {
    values_.resize(refs_.size() * floats_);
    labels_.resize(refs_.size());
  }
  std::copy_n(values, floats_, values_.data() + position * floats_);
  labels_[position] = label;
  there_[position] = 1;
}

std::shared_ptr<CacheTable> CacheTables::Get(
    const std::pair<int, int>& share, const std::function<std::shared_ptr<CacheTable>()>& make) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<CacheTable>& table = tables_[share];
  if (table == nullptr) table = make();
  return table;
}

namespace {

std::vector<uint64_t> BeginsOf(const std::vector<uint64_t>& sizes) {
  std::vector<uint64_t> begins = {0};
  for (const uint64_t size : sizes) begins.push_back(begins.back() + size);
  return begins;
}

std::string Times(const std::vector<uint64_t>& dims) {
  std::string text;
  for (const uint64_t dim : dims) text += Text(text.empty() ? "" : "x", dim);
  return text;
}

void CheckCount(
    const std::vector<uint64_t>& dims, const char* what, uint64_t found, uint64_t expected) {
  if (found == expected) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text("examples of ", Times(dims), ": found ", found, " ", what, ", expected ", expected));
}

// The CRC-32 of all labels and of the first MiB of the values.
std::string DigestOf(
    const void* values, size_t value_bytes, const void* labels, size_t label_bytes) {
  constexpr size_t kBeginning = 1 << 20;
  auto crc = crc32_z(0, static_cast<const Bytef*>(labels), label_bytes);
  crc = crc32_z(crc, static_cast<const Bytef*>(values), std::min(value_bytes, kBeginning));
  return Text("memory ", value_bytes, " bytes ", crc);
}

template <typename T>
class ArraySource : public ExampleSource {
 public:
  ArraySource(const std::vector<uint64_t>& dims, std::vector<T> values, std::vector<int32_t> labels)
      : ExampleSource(ShapeOfDims(dims), {dims.empty() ? 0 : dims[0]}),
        values_(std::move(values)),
        labels_(std::move(labels)),
        stride_(shape().count()) {
    CheckCount(dims, "values", values_.size(), dims[0] * stride_);
    CheckCount(dims, "labels", labels_.size(), dims[0]);
  }

  std::string identity() const override {
    return DigestOf(
        values_.data(), values_.size() * sizeof(T), labels_.data(),
        labels_.size() * sizeof(int32_t));
  }

  ExampleRow Row(uint64_t example) const override {
    const T* row = values_.data() + example * stride_;
    if constexpr (std::is_same_v<T, float>) {
      return {nullptr, row, labels_[example]};
    } else {
      return {row, nullptr, labels_[example]};
    }
  }

 private:
  std::vector<T> values_;
  std::vector<int32_t> labels_;
  size_t stride_;
};

class BytesInMemory : public ExampleSource {
 public:
  BytesInMemory(
      const ExampleShape& shape, uint64_t count, const uint8_t* bytes, const uint8_t* labels,
      std::shared_ptr<const void> owner)
      : ExampleSource(shape, {count}),
        bytes_(bytes),
        labels_(labels),
        stride_(shape.count()),
        owner_(std::move(owner)) {}

  std::string identity() const override {
    return DigestOf(bytes_, count() * stride_, labels_, count());
  }

  ExampleRow Row(uint64_t example) const override {
    return {bytes_ + example * stride_, nullptr, labels_[example]};
  }

 private:
  const uint8_t* bytes_;
  const uint8_t* labels_;
  size_t stride_;
  std::shared_ptr<const void> owner_;
};

}  // namespace

ExampleSource::ExampleSource(const ExampleShape& shape, const std::vector<uint64_t>& file_sizes)
    : shape_(shape), file_begins_(BeginsOf(file_sizes)) {}

ExampleShape ShapeOfDims(const std::vector<uint64_t>& dims) {
  constexpr uint64_t kLargest = 1 << 30, kMost = uint64_t{1} << 33;  // their product fits 64 bits
  if (dims.empty() || dims[0] == 0)
    throw Error(ErrorCode::kInvalidArgument, "examples in memory: found none, expected at least 1");
  if (dims[0] > kMost) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("examples of ", Times(dims), ": expected at most ", kMost, " examples"));
  }
  uint64_t sides[3] = {1, 1, 1}, count = 1;  // height, width, channels
  for (size_t i = 1; i < dims.size(); ++i) {
    const uint64_t dim = dims[i];
    if (dim == 0 || dim > kLargest || count * dim > kLargest) {
      throw Error(
          ErrorCode::kInvalidArgument, Text(
                                           "examples of ", Times(dims), ": expected from 1 to ",
                                           kLargest, " values in each example"));
    }
    count *= dim;
    // One dimension: channels. Two: height, width. More: the last two are width and channels, and
    // the product of the others is the height.
    const size_t rank = dims.size() - 1;
    const size_t side = rank == 1 ? 2 : rank == 2 ? i - 1 : i + 2 > rank ? i + 2 - rank : 0;
    sides[side] *= dim;
  }
  return {static_cast<int>(sides[0]), static_cast<int>(sides[1]), static_cast<int>(sides[2])};
}

SourcePtr MemorySource(
    const std::vector<uint64_t>& dims, std::vector<float> values, std::vector<int32_t> labels) {
  return std::make_shared<ArraySource<float>>(dims, std::move(values), std::move(labels));
}

SourcePtr MemorySource(
    const std::vector<uint64_t>& dims, std::vector<uint8_t> bytes, std::vector<int32_t> labels) {
  return std::make_shared<ArraySource<uint8_t>>(dims, std::move(bytes), std::move(labels));
}

SourcePtr MappedSource(
    const ExampleShape& shape, uint64_t count, const uint8_t* bytes, const uint8_t* labels,
    std::shared_ptr<const void> owner) {
  return std::make_shared<BytesInMemory>(shape, count, bytes, labels, std::move(owner));
}

namespace {

constexpr int kImageDims = 3, kLabelDims = 1;

using Dims = std::vector<uint64_t>;

Dims ImageDims(const IdxFiles& files) {
  const Dims images = ReadIdxDims(files.images, kImageDims);
  const Dims labels = ReadIdxDims(files.labels, kLabelDims);
  if (images[0] != labels[0]) {
    throw Error(
        ErrorCode::kInvalidArgument, Text(
                                         files.labels, ": ", labels[0], " labels, expected ",
                                         images[0], " as there are images in ", files.images));
  }
  return images;
}

// Each file's images stay in memory after their first use.
class IdxFileSource : public ExampleSource {
 public:
  IdxFileSource(std::vector<IdxFiles> files, const ExampleShape& shape, const Dims& sizes)
      : ExampleSource(shape, sizes),
        paths_(std::move(files)),
        contents_(sizes.size()),
        stride_(shape.count()) {}

  std::string identity() const override {
    std::string text;
    for (const IdxFiles& paths : paths_) text += Text(text.empty() ? "" : " ", paths.images);
    return text;
  }

  void Load(uint64_t file) const override {
    Content& content = contents_[file];
    const std::lock_guard lock(content.mutex);
    if (content.read) return;
    Read(file);
    content.read = true;
  }

  ExampleRow Row(uint64_t example) const override {
    const std::vector<uint64_t>& begins = file_begins();
    const auto after = std::upper_bound(begins.begin(), begins.end(), example);
    const auto file = static_cast<size_t>(after - begins.begin()) - 1;
    const uint64_t i = example - begins[file];
    const Content& content = contents_[file];
    return {content.images.data() + i * stride_, nullptr, content.labels[i]};
  }

 private:
  struct Content {
    std::mutex mutex;
    bool read = false;
    std::vector<uint8_t> images, labels;
  };

  void Read(uint64_t file) const {
    const IdxFiles& paths = paths_[file];
    IdxArray images = ReadIdx(paths.images, kImageDims), labels = ReadIdx(paths.labels, kLabelDims);
    const uint64_t count = file_begins()[file + 1] - file_begins()[file];
    CheckUnchanged(paths.images, images.dims, count);
    CheckUnchanged(paths.labels, labels.dims, count);
    contents_[file].images = std::move(images.bytes);
    contents_[file].labels = std::move(labels.bytes);
  }

  void CheckUnchanged(const std::string& path, const Dims& dims, uint64_t count) const {
    const bool same_size =
        dims.size() == kLabelDims || dims[1] * dims[2] == static_cast<uint64_t>(stride_);
    if (dims[0] == count && same_size) return;
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(path, ": ", dims[0], " items, expected ", count, " as when it was opened"));
  }

  std::vector<IdxFiles> paths_;
  mutable std::deque<Content> contents_;
  size_t stride_;
};

}  // namespace

SourcePtr FileSource(const std::vector<IdxFiles>& files) {
  if (files.empty()) throw Error(ErrorCode::kInvalidArgument, "found no file, expected at least 1");
  Dims sizes, first;
  for (const IdxFiles& pair : files) {
    const Dims dims = ImageDims(pair);
    if (first.empty()) first = dims;
    if (dims[1] != first[1] || dims[2] != first[2]) {
      throw Error(
          ErrorCode::kInvalidArgument,
          Text(
              pair.images, ": images of ", dims[1], "x", dims[2], ", expected ", first[1], "x",
              first[2], " as in ", files[0].images));
    }
    sizes.push_back(dims[0]);
  }
  return std::make_shared<IdxFileSource>(files, ShapeOfDims(first), sizes);
}

}  // namespace dtrun::models
