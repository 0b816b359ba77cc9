#ifndef DTRUN_MODELS_LOSSES_EXAMPLES_H_
#define DTRUN_MODELS_LOSSES_EXAMPLES_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace dtrun::models {

/// What a network has put out for some examples: (examples, width) floats, row by row. A view.
struct Outputs {
  const float* data = nullptr;
  size_t examples = 0, width = 0;

  std::span<const float> row(size_t example) const { return {data + example * width, width}; }
};

/// What it should have put out: labels for a classifier, values for anything else. A view.
struct Targets {
  std::span<const int32_t> labels = {};  ///< (examples), each from 0 and below Outputs::width
  std::span<const float> values = {};    ///< (examples, width)

  size_t label(size_t example) const { return static_cast<size_t>(labels[example]); }
};

}  // namespace dtrun::models

#endif
