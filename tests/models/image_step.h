#ifndef DTRUN_TESTS_MODELS_IMAGE_STEP_H_
#define DTRUN_TESTS_MODELS_IMAGE_STEP_H_

#include <cstdint>
#include <span>

#include "models/data/dataset.h"
#include "models/data/sampling.h"
#include "models/layers/activations.h"
#include "models/layers/sequential.h"

namespace dtrun::models {

/// Passes of a network over images without a Replica: no ranks, no optimizer.

/// Images with made-up pixels and labels below `classes`.
Images MadeUpImages(uint64_t count, int height, int width, int classes);

/// One rank's part of one global batch.
struct Share {
  std::span<const uint32_t> examples;  ///< indices of images; may be empty
  uint32_t first_position = 0;         ///< of examples[0] in the global batch
  uint64_t global_batch = 0;           ///< examples of all ranks' shares together
  uint64_t step = 0;                   ///< optimizer steps done before
  double regularization_scale = 1;     ///< see Pass
};

/// Works through the share in chunks. The parameters' gradients are then those of this loss:
///   sum of the share's losses / global_batch
/// The sum of these gradients over all ranks is the gradient of the mean over the global batch.
/// Calls on_ready(i), last layer first, as soon as the gradient of parameter i is complete.
Tally ComputeGradients(
    Sequential& model, const Images& images, const Share& share, const OnReady& on_ready);

/// A forward pass without dropout over the images [range.begin, range.end).
Tally Evaluate(Sequential& model, const Images& images, const Range& range);

}  // namespace dtrun::models

#endif
