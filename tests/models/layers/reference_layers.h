#ifndef DTRUN_TESTS_MODELS_LAYERS_REFERENCE_LAYERS_H_
#define DTRUN_TESTS_MODELS_LAYERS_REFERENCE_LAYERS_H_

#include <cstddef>
#include <vector>

#include "models/layers/settings.h"
#include "models/layers/tensor.h"

namespace dtrun::testing {

/// Reference layers in double precision that compute one value after the other. They read
/// parameters from `parameter` and move it behind the parameters.

/// An activation with its shape, channels last.
struct Activations {
  models::Shape shape;
  std::vector<double> values;

  double& at(int h, int w, int c) {
    return values
        [(size_t(h) * size_t(shape.width) + size_t(w)) * size_t(shape.channels) + size_t(c)];
  }
};

Activations Convolve(
    Activations x, int filters, const models::Window& window, bool use_bias,
    const double*& parameter);
Activations MaxOfWindows(Activations x, const models::Window& window);
Activations MeanOfWindows(Activations x, const models::Window& window);
Activations MeanOfPixels(Activations x);
Activations Connect(const Activations& x, int units, const double*& parameter);
Activations ReluOf(Activations x);
Activations SoftmaxOfChannels(Activations x);
Activations Sum(Activations a, const Activations& b);
double CrossEntropy(const std::vector<double>& logits, size_t label);

/// A batch, for layers that need all examples.
using Batch = std::vector<Activations>;

struct Moments {
  std::vector<double> mean, variance;  ///< of the channels
};
Moments MomentsOf(Batch batch);
/// Gamma and beta are the parameters.
Batch Normalize(Batch batch, const Moments& moments, double epsilon, const double*& parameter);

}  // namespace dtrun::testing

#endif
