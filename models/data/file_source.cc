#include <dtrun/error.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <utility>

#include "models/data/example_source.h"
#include "models/data/idx.h"
#include "models/text.h"

namespace dtrun::models {
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

// Each file's images stay in memory from the first use on.
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
