#include "models/data/dataset.h"

#include <dtrun/error.h>
#include <unistd.h>

#include <algorithm>

#include "models/data/idx.h"
#include "models/text.h"

namespace dtrun::models {
namespace {

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

std::string HowToGetIt(const std::string& directory) {
  if (directory != kFashionMnistDir) return "";
  return "; install it with: apt-get install dataset-fashion-mnist, or name another set with "
         "--data-dir";
}

std::string FindFile(const std::string& directory, const std::string& name) {
  for (const char* suffix : {"", ".gz"}) {
    if (Exists(Text(directory, "/", name, suffix))) return Text(directory, "/", name, suffix);
  }
  const std::string what =
      Exists(directory) ? "has neither this file nor this file with .gz" : "does not exist";
  throw Error(
      ErrorCode::kSystem,
      Text(directory, "/", name, ": not found: the folder ", what, HowToGetIt(directory)));
}

Images ReadImages(const std::string& directory, const std::string& split) {
  const std::string images_path = FindFile(directory, split + "-images-idx3-ubyte");
  const std::string labels_path = FindFile(directory, split + "-labels-idx1-ubyte");
  IdxArray pixels = ReadIdx(images_path, 3), labels = ReadIdx(labels_path, 1);
  if (pixels.dims[0] != labels.dims[0]) {
    throw Error(
        ErrorCode::kInvalidArgument, Text(
                                         labels_path, ": ", labels.dims[0], " labels, expected ",
                                         pixels.dims[0], " as there are images in ", images_path));
  }
  constexpr uint64_t kLargestSide = 1 << 15;
  if (std::max(pixels.dims[1], pixels.dims[2]) > kLargestSide) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            images_path, ": images of ", pixels.dims[1], "x", pixels.dims[2], ", expected at most ",
            kLargestSide, " a side"));
  }
  Images images;
  images.count = pixels.dims[0];
  images.height = static_cast<int>(pixels.dims[1]);
  images.width = static_cast<int>(pixels.dims[2]);
  images.pixels = std::move(pixels.bytes);
  images.labels = std::move(labels.bytes);
  return images;
}

void CheckSameSize(const Dataset& data, const std::string& directory) {
  if (data.train.height == data.test.height && data.train.width == data.test.width) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text(
          directory, "/t10k-images-idx3-ubyte: images of ", data.test.height, "x", data.test.width,
          ", expected ", data.train.height, "x", data.train.width, " as in the training set"));
}

void CheckTestLabels(const Dataset& data, const std::string& directory) {
  const auto found = std::find_if(
      data.test.labels.begin(), data.test.labels.end(),
      [&](uint8_t label) { return label >= data.classes; });
  if (found == data.test.labels.end()) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text(
          directory, "/t10k-labels-idx1-ubyte: label ", int{*found}, " at item ",
          found - data.test.labels.begin(), ", expected at most ", data.classes - 1,
          " as in the training set"));
}

}  // namespace

Dataset LoadDataset(const std::string& directory) {
  Dataset data;
  data.train = ReadImages(directory, "train");
  data.test = ReadImages(directory, "t10k");
  data.classes = 1 + *std::max_element(data.train.labels.begin(), data.train.labels.end());
  CheckSameSize(data, directory);
  CheckTestLabels(data, directory);
  return data;
}

}  // namespace dtrun::models
