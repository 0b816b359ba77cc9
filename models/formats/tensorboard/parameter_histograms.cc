#include "models/formats/tensorboard/parameter_histograms.h"

#include <dtrun/error.h>

#include "models/text.h"

namespace dtrun::models {

void WriteHistograms(
    const std::vector<Parameter>& parameters, int64_t step, SummaryWriter& writer) {
  for (const Parameter& parameter : parameters) {
    const Buffer& value = parameter.value;
    if (value.dtype != DType::kF32) {
      throw Error(
          ErrorCode::kInvalidArgument,
          Text(parameter.name, ": values of ", NameOf(value.dtype), ", expected f32"));
    }
    writer.Histogram(
        parameter.name + "/histogram", {static_cast<const float*>(value.data), value.count}, step);
  }
}

}  // namespace dtrun::models
