#include "models/program/image_bytes.h"

#include <dtrun/error.h>

#include "models/data/node.h"
#include "models/text.h"

namespace dtrun::models {

ImageBytes::ImageBytes(const Pipeline& pipeline) : pixels_(pipeline.shape().count()) {
  const ExampleSource& source = SourceOf(pipeline.node());
  labels_.reserve(pipeline.examples());
  for (uint64_t i = 0; i < pipeline.examples(); ++i) {
    const ExampleRow row = source.Row(i);
    if (i == 0) images_ = row.bytes;
    if (row.bytes == nullptr || row.bytes != images_ + i * pixels_) {
      throw Error(
          ErrorCode::kInvalidArgument,
          Text("a data set for a GPU: image ", i, " is not behind the one before it, as bytes"));
    }
    labels_.push_back(static_cast<uint8_t>(row.label));
  }
}

}  // namespace dtrun::models
