#ifndef DTRUN_MODELS_LOSSES_SPARSE_CATEGORICAL_CROSSENTROPY_H_
#define DTRUN_MODELS_LOSSES_SPARSE_CATEGORICAL_CROSSENTROPY_H_

#include <string>

#include "models/losses/loss.h"

namespace dtrun::models {

/// Cross-entropy of a classifier's output against one label per example.
///
///   from logits          loss = log(sum over k of exp(output(k))) - output(label)
///   from probabilities   loss = -log(max(output(label), 1e-7))
///
/// A network that ends in a softmax puts out probabilities. Taking these for logits would apply a
/// second softmax: training then looks as if it worked, slowly. CheckLastLayer refuses that, and
/// probabilities without a softmax as well.
class SparseCategoricalCrossentropy : public Loss {
 public:
  enum class From { kLogits, kProbabilities };

  explicit SparseCategoricalCrossentropy(From from = From::kLogits) : from_(from) {}
  /// What fits a network whose last layer is described so.
  static SparseCategoricalCrossentropy For(const std::string& last_layer);

  From from() const { return from_; }
  std::string name() const override { return "sparse_categorical_crossentropy"; }
  void CheckLastLayer(const std::string& last_layer) const override;
  void PerExample(
      const Outputs& outputs, const Targets& targets, std::span<double> losses) const override;
  void Gradient(
      const Outputs& outputs, const Targets& targets, std::span<const float> factors,
      float* gradient) const override;

 private:
  From from_;
};

}  // namespace dtrun::models

#endif
