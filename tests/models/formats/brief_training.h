#ifndef DTRUN_TESTS_MODELS_FORMATS_BRIEF_TRAINING_H_
#define DTRUN_TESTS_MODELS_FORMATS_BRIEF_TRAINING_H_

#include "models/data/dataset.h"
#include "models/layers/sequential.h"

namespace dtrun::testing {

/// Trains with `steps` steps of gradient descent with momentum, one chunk of the network per step.
/// The weights and biases are then those of a trained network. `images` must have at least a
/// chunk's images.
void TrainBriefly(
    models::Sequential& model, const models::Images& images, int steps, float learning_rate);

}  // namespace dtrun::testing

#endif
