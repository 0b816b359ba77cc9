#include "models/data/example_source.h"

#include <dtrun/error.h>
#include <zlib.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "models/text.h"

namespace dtrun::models {
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

// Of all labels, and of the beginning of the values.
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
  constexpr uint64_t kLargest = 1 << 30, kMost = uint64_t{1} << 33;  // their product is no overflow
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
    // (channels); (height, width); the last three of more, the first ones being one with height.
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

}  // namespace dtrun::models
