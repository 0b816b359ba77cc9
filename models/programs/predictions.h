#ifndef DTRUN_MODELS_PROGRAMS_PREDICTIONS_H_
#define DTRUN_MODELS_PROGRAMS_PREDICTIONS_H_

#include <dtrun/communicator.h>

#include <string>
#include <vector>

#include "models/data/dataset.h"
#include "models/data/sampling.h"
#include "models/layers/loss.h"
#include "models/layers/sequential.h"

namespace dtrun::models {

/// What a network says about images.
struct Predictions {
  Tally tally;
  std::vector<float> probabilities;  ///< (images, classes), in the order of the images
};

/// Of the images [range.begin, range.end). The network's outputs are logits, or probabilities if it
/// ends with a softmax. Labels are below its number of outputs.
Predictions Predict(Sequential& model, const Images& images, const Range& range);

/// Collective: every rank brings those of its range, in rank order, and leaves with all of them.
Predictions GatherPredictions(Communicator& world, Predictions mine);

/// A line with names, then one per image:
///   prediction,p0,p1,p2
///   1,0.25,0.5,0.25
std::string ToCsv(const std::vector<float>& probabilities, size_t classes);

}  // namespace dtrun::models

#endif
