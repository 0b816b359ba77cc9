#ifndef DTRUN_MODELS_LAYERS_LAYER_H_
#define DTRUN_MODELS_LAYERS_LAYER_H_

#include <dtrun/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "models/layers/settings.h"
#include "models/layers/tensor.h"

namespace dtrun::models {

enum class Activation { kNone, kRelu };

/// One pass of some examples through a part of the network.
struct Pass {
  bool training = false;
  /// Number of valid examples. Values behind them are left over from earlier passes. Set by
  /// Sequential.
  int examples = 0;
  /// Training only: the optimizer steps done before, and the position of the first example in the
  /// global batch. Both select the dropout masks.
  uint64_t step = 0;
  uint32_t first_example = 0;
  /// `first` is true in the first pass of this rank's step, `last` in the last pass. The first pass
  /// overwrites the gradients, later passes add to them. They are complete after the last pass.
  bool first = true, last = true;
  /// Backward adds the gradient of Sequential::RegularizationLoss() times this factor. If ranks sum
  /// their gradients, the factor is 1 / ranks (ScaleRegularization).
  double regularization_scale = 1;
};

/// Initial distribution of a kernel.
enum class Initializer {
  /// Uniform in +-sqrt(6 / (fan_in + fan_out)), Keras's default: X. Glorot, Y. Bengio, AISTATS
  /// 2010.
  kGlorotUniform,
  /// Normal with variance 2 / fan_out, for ReLUs after a normalisation: K. He et al., ICCV 2015,
  /// section 2.2, backward case.
  kHeNormal,
};

/// The name, shape and initial values of a parameter or a buffer.
struct ParameterSpec {
  std::string name;
  std::vector<int> shape;
  int fan_in = 0, fan_out = 0;  ///< 0: all elements start as `value`
  float value = 0;
  Initializer initializer = Initializer::kGlorotUniform;
  /// Weight in the regularisation loss: l2 * sum of squares (Keras's regularizers.L2).
  double l2 = 0;

  size_t count() const;
};

class Builder;
class NetworkGraph;

/// A layer of a Sequential. Derive your own layers from PlainLayer, which works on plain arrays.
/// The built-in fast layers derive from Layer.
///
/// Sequential calls the functions in this order. Nothing allocates after BuildBackward.
///   once:       OutputShape, ParameterSpecs and BufferSpecs of all layers
///               BuildForward of all layers, then BuildBackward of all layers in reverse order
///   per step:   PrepareWeights of all layers
///   per pass:   Forward of all layers; then, in reverse order, BackwardWeights and BackwardData
/// Not thread-safe.
class Layer {
 public:
  virtual ~Layer() = default;

  /// "conv2d"
  virtual std::string kind() const = 0;
  /// "conv2d 32 3x3 relu"
  virtual std::string description() const = 0;
  /// The settings from which a LayerRegistry makes the same layer.
  virtual LayerSettings settings() const { return {}; }
  /// Throws Error kInvalidArgument if the layer cannot work on such an input. The text names the
  /// requirement of the layer.
  virtual Shape OutputShape(const Shape& input) const = 0;
  virtual std::vector<ParameterSpec> ParameterSpecs(const Shape&) const { return {}; }
  /// State besides the parameters, for example running statistics. Buffers are broadcast, saved and
  /// restored like parameters, but they are not trained.
  virtual std::vector<ParameterSpec> BufferSpecs(const Shape&) const { return {}; }
  /// True: the layer reads its input only in the plain format (see Tensor).
  virtual bool needs_plain_input() const { return false; }
  /// True: this layer and all layers behind it take a whole chunk at a time, not micro-batches.
  virtual bool takes_chunks() const { return needs_whole_share(); }
  /// True: the layer trains on all examples of a rank's share at once. The share is then one chunk.
  virtual bool needs_whole_share() const { return false; }
  /// True: the forward pass in training exchanges data between ranks. Ranks without examples must
  /// then take part.
  virtual bool synchronizes() const { return false; }
  /// True: the layer overwrites its input with its output.
  virtual bool in_place() const { return false; }
  /// True: the layer can compute on bf16 tensors. Builder::dtype then decides, and the input has
  /// the same dtype. Parameters and their gradients remain f32. False: the input is f32.
  virtual bool computes_in_bf16() const { return false; }
  /// True: the backward pass reads the input again.
  virtual bool keeps_input() const { return true; }

  /// Describes the layer in basic operations, for devices other than the CPU. `input` is a value of
  /// the graph. Returns the value that holds the output. The default throws Error kInvalidArgument:
  /// only the CPU computes the layer. Parameters and buffers are taken in the order of the specs.
  virtual size_t Describe(NetworkGraph& graph, size_t input) const;

  /// Chooses the format of the output, makes all objects that Forward needs, and returns the
  /// output. `input`, the parameters and the output live as long as the Sequential.
  virtual Tensor* BuildForward(Builder& builder, Tensor* input) = 0;
  /// Called from the last layer to the first, when the output has memory for its gradient. Makes
  /// all objects that the backward functions need. If `input_gradient` is set, gives the input
  /// memory for its gradient.
  virtual void BuildBackward(Builder& builder, bool input_gradient) = 0;

  /// Asks this layer to add `term` to its output, followed by a ReLU if `relu`. A layer that needs
  /// the sum calls this after BuildForward. Returns true if Forward now does both in the pass that
  /// writes the output; `term` must then hold its data before Forward. Returns false if nothing
  /// changes.
  virtual bool TakeSum(const Tensor& /*term*/, bool /*relu*/) { return false; }

  /// Called after the parameters have changed.
  virtual void PrepareWeights() {}
  virtual void Forward(const Pass& pass) = 0;
  /// Computes the gradients of the parameters from the gradient of the output. They are complete
  /// after the pass marked `last`.
  virtual void BackwardWeights(const Pass&) {}
  /// Computes the gradient of the input from the gradient of the output. Not called if the gradient
  /// of the input is not needed.
  virtual void BackwardData(const Pass& pass) = 0;
};

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
