#ifndef DTRUN_MODELS_PROGRAMS_PREDICTIONS_H_
#define DTRUN_MODELS_PROGRAMS_PREDICTIONS_H_

#include <dtrun/communicator.h>

#include <string>
#include <vector>

#include "models/data/dataset.h"
#include "models/data/sampling.h"
#include "models/layers/activations.h"
#include "models/layers/sequential.h"

namespace dtrun::models {

/// A network's predictions for images.
struct Predictions {
  Tally tally;
  std::vector<float> probabilities;  ///< (images, classes), in the order of the images
};

/// Predicts the images [range.begin, range.end). The network's outputs are logits, or probabilities
/// if the network ends with a softmax. Labels must be below the number of outputs.
Predictions Predict(Sequential& model, const Images& images, const Range& range);

/// Gathers the predictions of all ranks, in rank order, on every rank. Collective.
Predictions GatherPredictions(Communicator& world, Predictions mine);

/// A line of column names, then one line per image:
///   prediction,p0,p1,p2
///   1,0.25,0.5,0.25
std::string ToCsv(const std::vector<float>& probabilities, size_t classes);

}  // namespace dtrun::models

#endif
