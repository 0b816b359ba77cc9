#ifndef DTRUN_MODELS_LAYERS_ACTIVATIONS_H_
#define DTRUN_MODELS_LAYERS_ACTIVATIONS_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "models/layers/layer.h"
#include "models/random/philox.h"

namespace dtrun::models {

struct Memo;

/// y = max(0, x). Activation::kRelu of the layer before computes the same and is faster, if that
/// layer has it.
class Relu : public Layer {
 public:
  std::string kind() const override { return "relu"; }
  std::string description() const override { return "relu"; }
  Shape OutputShape(const Shape& input) const override { return input; }
  bool in_place() const override { return true; }
  bool keeps_input() const override { return false; }
  size_t Describe(NetworkGraph& graph, size_t input) const override;
  Tensor* BuildForward(Builder& builder, Tensor* input) override;
  void BuildBackward(Builder&, bool) override {}
  void Forward(const Pass& pass) override;
  void BackwardData(const Pass&) override {}

 private:
  int batch_ = 0;
  Tensor* tensor_ = nullptr;
};

/// Softmax over the channels of each pixel: y(k) = exp(x(k)) / sum over j of exp(x(j)). The outputs
/// are probabilities. A loss that takes logits contains the softmax and is more exact.
class Softmax : public PlainLayer {
 public:
  std::string kind() const override { return "softmax"; }
  Shape OutputShape(const Shape& input) const override { return input; }
  size_t Describe(NetworkGraph& graph, size_t input) const override;

 protected:
  void Compute(const Pass& pass, const float* x, float* y) override;
  void ComputeGradients(
      const Pass& pass, const float* x, const float* y_gradient, float* x_gradient) override;
};

/// In training, sets each element to zero with probability `rate` and multiplies the other elements
/// by 1 / (1 - rate). Outside training, changes no element. N. Srivastava et al., JMLR 15 (2014),
/// scaled as in Keras.
///
/// The mask is a pure function of the seed, the step, the layer, the position of the example in the
/// global batch, and the position (h, w, c) in the example. The mask does not depend on
/// micro-batches or on the number of ranks. The rate is rounded to a multiple of 2^-16.
class Dropout : public Layer {
 public:
  explicit Dropout(double rate);

  std::string kind() const override { return "dropout"; }
  std::string description() const override;
  LayerSettings settings() const override;
  Shape OutputShape(const Shape& input) const override;
  bool in_place() const override { return true; }
  bool keeps_input() const override { return false; }
  bool computes_in_bf16() const override { return true; }
  size_t Describe(NetworkGraph& graph, size_t input) const override;
  Tensor* BuildForward(Builder& builder, Tensor* input) override;
  void BuildBackward(Builder&, bool) override {}
  void Forward(const Pass& pass) override;
  void BackwardData(const Pass& pass) override;

 private:
  uint32_t keep_below() const;
  void MakeMask(const Pass& pass, size_t example);
  template <typename Value>
  void Apply(size_t example, Value* values) const;
  void ApplyTo(float* values, size_t example) const;

  double rate_;

  uint32_t keep_below_ = 0;  // in units of 2^-16
  float scale_ = 0;
  int batch_ = 0;
  PhiloxKey key_{};
  uint32_t domain_ = 0;
  Tensor* tensor_ = nullptr;
  size_t mask_stride_ = 0;
  Memo* keep_ = nullptr;  // bytes (batch, height, width, channels)
};

/// A view of the same values in another shape, in the order height, width, channels. Copies no
/// values.
class Reshape : public Layer {
 public:
  /// `shape` has the same number of values as the input.
  explicit Reshape(const Shape& shape) : shape_(shape) {}

  std::string kind() const override { return "reshape"; }
  std::string description() const override;
  LayerSettings settings() const override;
  Shape OutputShape(const Shape& input) const override;
  bool needs_plain_input() const override { return true; }
  size_t Describe(NetworkGraph& graph, size_t input) const override;
  Tensor* BuildForward(Builder& builder, Tensor* input) override;
  void BuildBackward(Builder& builder, bool input_gradient) override;
  void Forward(const Pass&) override {}
  void BackwardData(const Pass& pass) override;

 protected:
  Reshape() = default;

 private:
  std::optional<Shape> shape_;  // nullopt: flat

  size_t count_ = 0;  // values of a chunk
  Tensor *input_ = nullptr, *output_ = nullptr;
};

/// Reshapes to 1 x 1 x n, where n is the number of values. Dense does not need a Flatten before it.
class Flatten : public Reshape {
 public:
  std::string kind() const override { return "flatten"; }
  std::string description() const override { return "flatten"; }
};

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

#endif  // DTRUN_MODELS_LAYERS_ACTIVATIONS_H_
