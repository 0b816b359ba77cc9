#include "models/layers/loss.h"

#include <algorithm>
#include <cmath>

namespace dtrun::models {
namespace {

// Exponents are taken below the largest logit, so that none overflows.
Tally AddExample(const float* logits, uint8_t label, size_t classes) {
  const float* largest = std::max_element(logits, logits + classes);
  double sum = 0;
  for (size_t k = 0; k < classes; ++k) sum += std::exp(logits[k] - *largest);
  return {std::log(sum) + double{*largest} - double{logits[label]}, largest == logits + label, 1};
}

void WriteGradient(
    const float* logits, uint8_t label, size_t classes, float scale, float* gradient) {
  const float largest = *std::max_element(logits, logits + classes);
  float sum = 0;
  for (size_t k = 0; k < classes; ++k) sum += gradient[k] = std::exp(logits[k] - largest);
  for (size_t k = 0; k < classes; ++k)
    gradient[k] = scale * (gradient[k] / sum - (k == label ? 1.0f : 0.0f));
}

}  // namespace

Tally& Tally::operator+=(const Tally& other) {
  loss += other.loss;
  correct += other.correct;
  examples += other.examples;
  return *this;
}

Tally SoftmaxCrossEntropy(
    const float* logits, const uint8_t* labels, size_t examples, size_t classes) {
  Tally tally;
  for (size_t i = 0; i < examples; ++i)
    tally += AddExample(logits + i * classes, labels[i], classes);
  return tally;
}

Tally SoftmaxCrossEntropy(
    const float* logits, const uint8_t* labels, size_t examples, size_t classes, float scale,
    float* gradient) {
  for (size_t i = 0; i < examples; ++i)
    WriteGradient(logits + i * classes, labels[i], classes, scale, gradient + i * classes);
  return SoftmaxCrossEntropy(logits, labels, examples, classes);
}

}  // namespace dtrun::models
