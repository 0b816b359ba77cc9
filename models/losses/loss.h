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

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_LOSSES_LOSS_H_
