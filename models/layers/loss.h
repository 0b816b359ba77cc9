#ifndef DTRUN_MODELS_LAYERS_LOSS_H_
#define DTRUN_MODELS_LAYERS_LOSS_H_

#include <cstddef>
#include <cstdint>

namespace dtrun::models {

/// Sums over examples. The sums of micro-batches and ranks can be added. The mean is computed once,
/// from the total number of examples.
struct Tally {
  double loss = 0;       ///< sum of the per-example losses
  uint64_t correct = 0;  ///< examples whose label has the largest logit
  uint64_t examples = 0;

  Tally& operator+=(const Tally& other);
  double mean_loss() const { return loss / static_cast<double>(examples); }
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(examples); }
};

/// Cross-entropy of softmax(logits) against the labels, per example:
///   loss = log(sum over k of exp(logit(k))) - logit(label)
/// `logits` has shape (examples, classes). Labels are below `classes`.
Tally SoftmaxCrossEntropy(
    const float* logits, const uint8_t* labels, size_t examples, size_t classes);

/// Also writes the gradient of scale * sum of the losses with respect to the logits:
///   gradient(k) = scale * (softmax(k) - (k == label))
Tally SoftmaxCrossEntropy(
    const float* logits, const uint8_t* labels, size_t examples, size_t classes, float scale,
    float* gradient);

}  // namespace dtrun::models

#endif
