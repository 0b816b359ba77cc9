#include "models/layers/softmax.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace dtrun::models {
namespace {

// Exponents are taken below the largest, so that none overflows.
void SoftmaxOf(const float* x, size_t channels, float* y) {
  const float largest = *std::max_element(x, x + channels);
  float sum = 0;
  for (size_t k = 0; k < channels; ++k) sum += y[k] = std::exp(x[k] - largest);
  for (size_t k = 0; k < channels; ++k) y[k] /= sum;
}

}  // namespace

void Softmax::Compute(const Pass& pass, const float* x, float* y) {
  const auto channels = size_t(input_shape().channels);
  const size_t count = size_t(pass.examples) * inputs();
  for (size_t i = 0; i < count; i += channels) SoftmaxOf(x + i, channels, y + i);
}

// dx(k) = y(k) * (dy(k) - sum over j of dy(j) * y(j)), from probabilities computed once more: the
// output may have been written over since.
void Softmax::ComputeGradients(
    const Pass& pass, const float* x, const float* y_gradient, float* x_gradient) {
  if (x_gradient == nullptr) return;
  const auto channels = size_t(input_shape().channels);
  const size_t count = size_t(pass.examples) * inputs();
  for (size_t i = 0; i < count; i += channels) {
    float *y = x_gradient + i, dot = 0;
    SoftmaxOf(x + i, channels, y);
    for (size_t k = 0; k < channels; ++k) dot += y_gradient[i + k] * y[k];
    for (size_t k = 0; k < channels; ++k) x_gradient[i + k] = y[k] * (y_gradient[i + k] - dot);
  }
}

}  // namespace dtrun::models
