#ifndef DTRUN_MODELS_LAYERS_LAYER_H_
#define DTRUN_MODELS_LAYERS_LAYER_H_

#include <dtrun/optimizer.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/layers/settings.h"
#include "models/layers/tensor.h"

namespace dtrun::models {

enum class Activation { kNone, kRelu };

/// One trip of some examples through a part of the network.
struct Pass {
  bool training = false;
  /// Those that count; what lies behind them is left over from others. Set by Sequential.
  int examples = 0;
  /// Training only. The optimizer steps done before, and the position in the global batch of the
  /// first example: both select the dropout masks.
  uint64_t step = 0;
  uint32_t first_example = 0;
  /// Whether it is the first or last one of this rank's step: gradients are overwritten in the
  /// first, added to in the following ones, and complete after the last.
  bool first = true, last = true;
  /// The gradients get this times the gradient of Sequential::RegularizationLoss(). Where ranks sum
  /// their gradients it is 1 / ranks (ScaleRegularization).
  double regularization_scale = 1;
};

/// How a kernel starts.
enum class Initializer {
  /// Uniform in +-sqrt(6 / (fan_in + fan_out)), Keras's choice: X. Glorot, Y. Bengio, AISTATS 2010.
  kGlorotUniform,
  /// Normal with variance 2 / fan_out, for ReLUs behind a normalisation: K. He et al., ICCV 2015,
  /// section 2.2, backward case.
  kHeNormal,
};

/// A parameter or a buffer before it exists.
struct ParameterSpec {
  std::string name;
  std::vector<int> shape;
  int fan_in = 0, fan_out = 0;  ///< 0: starts as `value` everywhere
  float value = 0;
  Initializer initializer = Initializer::kGlorotUniform;
  /// Its part of the regularisation loss is l2 * sum of its squares (Keras's regularizers.L2).
  double l2 = 0;

  size_t count() const;
};

class Builder;

/// A part of a Sequential. Your own layers derive from PlainLayer, which works on plain arrays;
/// this is what the fast ones are made of.
///
/// Sequential calls these functions in this order: OutputShape, ParameterSpecs and BufferSpecs;
/// BuildForward through all layers and BuildBackward through them in reverse; then
/// per step PrepareWeights and, pass by pass, Forward through all layers and
/// BackwardWeights and BackwardData through them in reverse. Nothing allocates once it is built.
/// Not thread-safe.
class Layer {
 public:
  virtual ~Layer() = default;

  /// "conv2d"
  virtual std::string kind() const = 0;
  /// "conv2d 32 3x3 relu"
  virtual std::string description() const = 0;
  /// What a LayerRegistry makes the same layer from.
  virtual LayerSettings settings() const { return {}; }
  /// Throws Error kInvalidArgument when the layer cannot work on such an input; the text says what
  /// it needs.
  virtual Shape OutputShape(const Shape& input) const = 0;
  virtual std::vector<ParameterSpec> ParameterSpecs(const Shape&) const { return {}; }
  /// What it keeps besides its parameters, such as running statistics: broadcast, saved and
  /// restored like them, but not trained.
  virtual std::vector<ParameterSpec> BufferSpecs(const Shape&) const { return {}; }
  /// Whether it reads its input in the plain format (see Tensor) only.
  virtual bool needs_plain_input() const { return false; }
  /// Whether it, and all layers behind it, take a whole chunk at a time and no micro-batches.
  virtual bool takes_chunks() const { return needs_whole_share(); }
  /// Whether it trains on all examples of a rank's share at once, which then are one chunk.
  virtual bool needs_whole_share() const { return false; }
  /// Whether its forward pass in training exchanges data between ranks, so that a rank without
  /// examples has to take part.
  virtual bool synchronizes() const { return false; }
  /// Whether it writes its output over its input.
  virtual bool in_place() const { return false; }
  /// Whether it can compute on bf16 tensors. Then the builder says whether it does, and its input
  /// is of the same dtype; parameters and their gradients remain f32. Otherwise its input is f32.
  virtual bool computes_in_bf16() const { return false; }
  /// Whether it reads its input again on the way back.
  virtual bool keeps_input() const { return true; }

  /// Chooses the output's format, makes what Forward needs, and returns the output. `input`, the
  /// parameters and the output live as long as the Sequential.
  virtual Tensor* BuildForward(Builder& builder, Tensor* input) = 0;
  /// Called from the last layer to the first, when the output has its gradient memory. Makes what
  /// the backward functions need and, if somebody reads it, gives the input its gradient memory.
  virtual void BuildBackward(Builder& builder, bool input_gradient) = 0;

  /// Called after BuildForward by a layer that adds `term` to this one's output, with a ReLU behind
  /// the sum or not. Returns true if Forward does both from now on, in the pass that writes the
  /// output: `term` holds its data by then. Otherwise nothing changes.
  virtual bool TakeSum(const Tensor& /*term*/, bool /*relu*/) { return false; }

  /// The parameters have changed.
  virtual void PrepareWeights() {}
  virtual void Forward(const Pass& pass) = 0;
  /// Output gradient -> gradients of the parameters, complete after the pass marked `last`.
  virtual void BackwardWeights(const Pass&) {}
  /// Output gradient -> input gradient. Not called when nobody reads the input gradient.
  virtual void BackwardData(const Pass& pass) = 0;
};

}  // namespace dtrun::models

#endif
