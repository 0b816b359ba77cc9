#ifndef DTRUN_MODELS_LOSSES_LOSS_H_
#define DTRUN_MODELS_LOSSES_LOSS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace dtrun::models {

/// The outputs of a network for some examples: (examples, width) floats, row by row. A view.
struct Outputs {
  const float* data = nullptr;
  size_t examples = 0, width = 0;

  std::span<const float> row(size_t example) const { return {data + example * width, width}; }
};

/// The expected outputs: labels for a classifier, otherwise values. A view.
struct Targets {
  std::span<const int32_t> labels = {};  ///< (examples), each at least 0 and below Outputs::width
  std::span<const float> values = {};    ///< (examples, width)

  size_t label(size_t example) const { return static_cast<size_t>(labels[example]); }
};

/// Measures the error of each output. A loss never computes a mean, because it does not know the
/// size of the global batch. AverageLoss computes the mean, and the caller of `Gradient` passes the
/// matching factors (LossFactors). Derive your own losses from Loss. Functions are const and may
/// run on any thread.
class Loss {
 public:
  virtual ~Loss() = default;

  /// "sparse_categorical_crossentropy"
  virtual std::string name() const = 0;

  /// Throws Error kInvalidArgument, with one line, if this loss does not fit the outputs of such a
  /// last layer. The argument is its description: "dense 10", "softmax".
  virtual void CheckLastLayer(const std::string&) const {}

  /// Writes losses(i) of every example, unscaled. Throws Error kInvalidArgument if the targets do
  /// not fit the outputs.
  virtual void PerExample(
      const Outputs& outputs, const Targets& targets, std::span<double> losses) const = 0;

  /// gradient(i, k) = factors(i) * d losses(i) / d outputs(i, k)
  virtual void Gradient(
      const Outputs& outputs, const Targets& targets, std::span<const float> factors,
      float* gradient) const = 0;
};

/// Returns the last layer of a network's description: "conv2d 32 3x3 relu, dense 10" -> "dense 10".
std::string LastLayerOf(const std::string& description);

/// True if the outputs of a layer with this description are probabilities: "softmax", "dense 10
/// softmax".
bool EndsInSoftmax(const std::string& last_layer);

/// A replica's part of the loss of a global batch:
///   sum over its examples of sample_weights(i) * per_example(i), divided by global_batch
/// `global_batch` is the number of examples of all replicas together. *Add* the parts of all
/// replicas, and their gradients. Each example then counts the same, however the batch is divided.
///
///   2 replicas, losses [2, 3] and [4, 5], global batch 4  ->  1.25 and 2.25; together 3.5
///
/// Do not average the parts: the mean over the replicas (1.75) divides by the number of replicas a
/// second time. If `sample_weights` is empty, each weight is 1. Throws Error kInvalidArgument if
/// the number of weights is not the number of examples. Throws it also if `global_batch` is 0 or
/// smaller than this part.
double AverageLoss(
    std::span<const double> per_example, std::span<const float> sample_weights,
    uint64_t global_batch);

/// Writes the factors with which Loss::Gradient computes the gradient of AverageLoss:
/// sample_weights(i) / global_batch.
void LossFactors(
    std::span<const float> sample_weights, uint64_t global_batch, std::span<float> factors);

/// A replica's part of a loss that is the same on all replicas, such as the regularisation of the
/// weights. The parts of all replicas add up to the loss. Throws Error kInvalidArgument if
/// `replicas` is below 1.
///
///   ScaleRegularization(0.6, 2)  ->  0.3
double ScaleRegularization(double regularization_loss, int replicas);

/// loss = mean over k of (output(k) - target(k))^2, the mean over the outputs of one example. The
/// targets are values. Labels are also possible: the target is 1 at the label and 0 elsewhere.
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
/// If a network ends in a softmax, its outputs are probabilities. If they were used as logits, the
/// loss would apply a second softmax: training would seem to work, but slowly. CheckLastLayer
/// refuses this, and also probabilities without a softmax.
class SparseCategoricalCrossentropy : public Loss {
 public:
  enum class From { kLogits, kProbabilities };

  explicit SparseCategoricalCrossentropy(From from = From::kLogits) : from_(from) {}
  /// Returns the loss that fits a network with this last layer.
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
