#ifndef DTRUN_MODELS_DATA_DATASET_H_
#define DTRUN_MODELS_DATA_DATASET_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dtrun::models {

/// Labelled grey images of equal size. Pixels stay bytes in memory: 60,000 of 28x28 are 47 MB, four
/// times that as floats.
struct Images {
  uint64_t count = 0;
  int height = 0, width = 0;
  std::vector<uint8_t> pixels;  ///< (count, height, width)
  std::vector<uint8_t> labels;  ///< (count)

  uint64_t pixels_per_image() const { return uint64_t(height) * uint64_t(width); }
};

struct Dataset {
  Images train, test;
  int classes = 0;  ///< labels are below it: the largest training label + 1
};

/// Where Debian's package dataset-fashion-mnist puts its files.
inline constexpr char kFashionMnistDir[] = "/usr/share/datasets/fashion-mnist";

/// Reads `directory`'s train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
/// t10k-labels-idx1-ubyte, each as it is or with .gz. Throws Error, one line that names the file:
/// what ReadIdx throws, and kInvalidArgument when the four do not belong together.
Dataset LoadDataset(const std::string& directory);

/// Unsigned bytes in `dims`, row-major: the content of an IDX file (the format of MNIST, described
/// at yann.lecun.com/exdb/mnist).
struct IdxArray {
  std::vector<uint64_t> dims;  ///< dims[0] counts the items; none is 0
  std::vector<uint8_t> bytes;  ///< as many as the product of dims
};

/// Reads an IDX file of unsigned bytes with `dimensions` dimensions, gzipped or not. Throws Error,
/// one line with the path, what was found and what was expected: kSystem when the file cannot be
/// opened or read, kInvalidArgument when its content is not such a file, whole and nothing more.
IdxArray ReadIdx(const std::string& path, int dimensions);

/// Only the dimensions, from the file's header; the same errors, as far as the header tells.
std::vector<uint64_t> ReadIdxDims(const std::string& path, int dimensions);

/// out = bytes / 255
void BytesToFloats(const uint8_t* bytes, size_t count, float* out);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_DATA_DATASET_H_
