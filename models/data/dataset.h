#ifndef DTRUN_MODELS_DATA_DATASET_H_
#define DTRUN_MODELS_DATA_DATASET_H_

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

}  // namespace dtrun::models

#endif
