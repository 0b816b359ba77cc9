#ifndef DTRUN_MODELS_LAYERS_PLAIN_LAYER_H_
#define DTRUN_MODELS_LAYERS_PLAIN_LAYER_H_

#include "models/layers/layer.h"

namespace dtrun::models {

/// The base class of your own layers. They read and write plain arrays, example by example,
/// channels last. Formats, micro-batches and memory are hidden.
///
///   // y = x * sigmoid(x): P. Ramachandran et al., "Searching for activation functions", 2017.
///   class Swish : public PlainLayer {
///    public:
///     std::string kind() const override { return "swish"; }
///     Shape OutputShape(const Shape& input) const override { return input; }
///
///    protected:
///     void Compute(const Pass& pass, const float* x, float* y) override {
///       for (size_t i = 0; i < size_t(pass.examples) * inputs(); ++i)
///         y[i] = x[i] / (1 + std::exp(-x[i]));
///     }
///     void ComputeGradients(
///         const Pass& pass, const float* x, const float* y_gradient, float* x_gradient) override {
///       for (size_t i = 0; x_gradient != nullptr && i < size_t(pass.examples) * inputs(); ++i) {
///         const float s = 1 / (1 + std::exp(-x[i]));
///         x_gradient[i] = y_gradient[i] * s * (1 + x[i] * (1 - s));
///       }
///     }
///   };
///
/// If the layer has parameters, override ParameterSpecs, read `value(i)` and add to `gradient(i)`.
/// Report errors in OutputShape: throw Error kInvalidArgument, with a text that says what the layer
/// needs. Not thread-safe.
class PlainLayer : public Layer {
 public:
  std::string description() const override { return kind(); }
  bool needs_plain_input() const final { return true; }
  Tensor* BuildForward(Builder& builder, Tensor* input) final;
  void BuildBackward(Builder& builder, bool input_gradient) final;
  void Forward(const Pass& pass) final;
  void BackwardWeights(const Pass& pass) final;
  void BackwardData(const Pass& pass) final;

 protected:
  /// Computes outputs y from inputs x. Both hold `pass.examples` examples, one after the other.
  virtual void Compute(const Pass& pass, const float* x, float* y) = 0;
  /// The backward pass of the same pass. Writes the gradient of the inputs, unless `x_gradient` is
  /// null, and adds the gradients of the parameters to `gradient(i)`.
  virtual void ComputeGradients(
      const Pass& pass, const float* x, const float* y_gradient, float* x_gradient) = 0;

  /// Number of input and output values of one example. Their order is height, width, channels.
  size_t inputs() const { return inputs_; }
  size_t outputs() const { return outputs_; }
  const Shape& input_shape() const { return input_->shape; }
  /// Values and gradient of parameter `i`, in the order of ParameterSpecs.
  const float* value(size_t i) const;
  float* gradient(size_t i) const;

 private:
  void GoBack(const Pass& pass);

  size_t inputs_ = 0, outputs_ = 0, batch_ = 0, parameter_count_ = 0;
  bool input_gradient_ = false;
  Tensor *input_ = nullptr, *output_ = nullptr;
  Parameter* parameters_ = nullptr;
};

}  // namespace dtrun::models

#endif
