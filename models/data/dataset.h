#ifndef DTRUN_MODELS_DATA_DATASET_H_
#define DTRUN_MODELS_DATA_DATASET_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dtrun::models {

/// Labelled grey images of equal size. The pixels stay bytes in memory: 60,000 images of 28x28 take
/// 47 MB. As floats they would take four times as much.
struct Images {
  uint64_t count = 0;
  int height = 0, width = 0;
  std::vector<uint8_t> pixels;  ///< (count, height, width)
  std::vector<uint8_t> labels;  ///< (count)

  uint64_t pixels_per_image() const { return uint64_t(height) * uint64_t(width); }
};

struct Dataset {
  Images train, test;
  int classes = 0;  ///< the largest training label + 1; all labels are below it
};

/// The folder of Debian's package dataset-fashion-mnist.
inline constexpr char kFashionMnistDir[] = "/usr/share/datasets/fashion-mnist";

/// Reads train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
/// t10k-labels-idx1-ubyte in `directory`. Each file may also have the suffix .gz. Throws Error with
/// one line that names the file: the errors of ReadIdx, and kInvalidArgument if the four files do
/// not belong together.
Dataset LoadDataset(const std::string& directory);

/// Unsigned bytes of the shape `dims`, row-major: the content of an IDX file. IDX is the format of
/// MNIST, described at yann.lecun.com/exdb/mnist.
struct IdxArray {
  std::vector<uint64_t> dims;  ///< dims[0] is the number of items; no entry is 0
  std::vector<uint8_t> bytes;  ///< its size is the product of dims
};

/// Reads an IDX file of unsigned bytes with `dimensions` dimensions, gzipped or not. Throws Error
/// with one line: the path, the value found and the value expected. kSystem: the file cannot be
/// opened or read. kInvalidArgument: the content is not such an IDX file, ends early, or has bytes
/// left over.
IdxArray ReadIdx(const std::string& path, int dimensions);

/// Reads only the dimensions, from the file's header. Throws the errors of ReadIdx, as far as the
/// header shows them.
std::vector<uint64_t> ReadIdxDims(const std::string& path, int dimensions);

/// out = bytes / 255
void BytesToFloats(const uint8_t* bytes, size_t count, float* out);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_DATA_DATASET_H_
