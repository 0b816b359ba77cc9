#ifndef DTRUN_MODELS_PROGRAM_IMAGE_BYTES_H_
#define DTRUN_MODELS_PROGRAM_IMAGE_BYTES_H_

#include <cstdint>
#include <vector>

#include "models/data/pipeline.h"
#include "models/gpu/gpu_replica.h"

namespace dtrun::models {

/// A data set's images where they lie, and its labels as bytes, for a GPU.
class ImageBytes {
 public:
  /// Of images that lie one behind the other, as those of LoadImageDataset do; throws Error
  /// kInvalidArgument for others. The pipeline's source outlives it.
  explicit ImageBytes(const Pipeline& pipeline);
  ByteImages view() const { return {labels_.size(), pixels_, images_, labels_.data()}; }

 private:
  uint64_t pixels_;
  const uint8_t* images_ = nullptr;
  std::vector<uint8_t> labels_;
};

}  // namespace dtrun::models

#endif
