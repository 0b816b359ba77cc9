#ifndef DTRUN_TESTS_MODELS_FORMATS_BRIEF_TRAINING_H_
#define DTRUN_TESTS_MODELS_FORMATS_BRIEF_TRAINING_H_

#include "models/data/dataset.h"
#include "models/layers/sequential.h"

namespace dtrun::testing {

/// Some steps of plain gradient descent with momentum, a chunk of the network each: so that its
/// weights are those of a trained network, biases included. There are as many images as a chunk
/// has, at least.
void TrainBriefly(
    models::Sequential& model, const models::Images& images, int steps, float learning_rate);

}  // namespace dtrun::testing

#endif
