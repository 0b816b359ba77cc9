#ifndef DTRUN_MODELS_LOSSES_LOSS_H_
#define DTRUN_MODELS_LOSSES_LOSS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace dtrun::models {

/// What a network has put out for some examples: (examples, width) floats, row by row. A view.
struct Outputs {
  const float* data = nullptr;
  size_t examples = 0, width = 0;

  std::span<const float> row(size_t example) const { return {data + example * width, width}; }
};

/// What it should have put out: labels for a classifier, values for anything else. A view.
struct Targets {
  std::span<const int32_t> labels = {};  ///< (examples), each from 0 and below Outputs::width
  std::span<const float> values = {};    ///< (examples, width)

  size_t label(size_t example) const { return static_cast<size_t>(labels[example]); }
};

/// How wrong each output is. A loss never takes a mean: it does not know the size of the global
/// batch. AverageLoss does, and whoever calls `Gradient` passes the factors that belong to it
/// (LossFactors). Derive from it for your own. Functions are const and may run on any thread.
class Loss {
 public:
  virtual ~Loss() = default;

  /// "sparse_categorical_crossentropy"
  virtual std::string name() const = 0;

  /// Throws Error kInvalidArgument, one line, when outputs of a network whose last layer is
  /// described so ("dense 10", "softmax") are not what this loss is about.
  virtual void CheckLastLayer(const std::string&) const {}

  /// losses(i) of every example, not scaled by anything. Throws Error kInvalidArgument when the
  /// targets are none for such outputs.
  virtual void PerExample(
      const Outputs& outputs, const Targets& targets, std::span<double> losses) const = 0;

  /// gradient(i, k) = factors(i) * d losses(i) / d outputs(i, k)
  virtual void Gradient(
      const Outputs& outputs, const Targets& targets, std::span<const float> factors,
      float* gradient) const = 0;
};

/// The last layer in a network's description: "conv2d 32 3x3 relu, dense 10" -> "dense 10".
std::string LastLayerOf(const std::string& description);

/// Whether a layer that is described so puts out probabilities: "softmax", "dense 10 softmax".
bool EndsInSoftmax(const std::string& last_layer);

/// A replica's part of the loss of a global batch:
///   sum over its examples of sample_weights(i) * per_example(i), divided by global_batch
/// where global_batch counts the examples of all replicas together. The parts of all replicas, and
/// so the gradients, are then *added*: each example counts the same, however the batch was shared.
///
///   2 replicas, losses [2, 3] and [4, 5], global batch 4  ->  1.25 and 2.25; together 3.5
///
/// Averaging these parts over the replicas instead (1.75) divides by the replicas a second time.
/// No `sample_weights`: each is 1. Throws Error kInvalidArgument when there is not one per example,
/// or the global batch is smaller than this part of it.
double AverageLoss(
    std::span<const double> per_example, std::span<const float> sample_weights,
    uint64_t global_batch);

/// What Loss::Gradient takes for the gradient of AverageLoss: sample_weights(i) / global_batch.
void LossFactors(
    std::span<const float> sample_weights, uint64_t global_batch, std::span<float> factors);

/// A replica's part of what all replicas have in common, such as the regularisation of weights that
/// are the same everywhere: the parts of all replicas add up to it.
///
///   ScaleRegularization(0.6, 2)  ->  0.3
double ScaleRegularization(double regularization_loss, int replicas);

/// loss = mean over k of (output(k) - target(k))^2, the mean over an example's own outputs. Targets
/// are values; labels stand for 1 at the label and 0 elsewhere.
class MeanSquaredError : public Loss {
 public:
  std::string name() const override { return "mean_squared_error"; }
  void PerExample(
      const Outputs& outputs, const Targets& targets, std::span<double> losses) const override;
  void Gradient(
      const Outputs& outputs, const Targets& targets, std::span<const float> factors,
      float* gradient) const override;
};

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

#endif  // DTRUN_MODELS_LOSSES_LOSS_H_
