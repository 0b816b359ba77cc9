#ifndef DTRUN_MODELS_LAYERS_SEQUENTIAL_H_
#define DTRUN_MODELS_LAYERS_SEQUENTIAL_H_

#include <dtrun/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/layers/builder.h"
#include "models/layers/layer.h"
#include "models/layers/tensor.h"

namespace dtrun::models {

using LayerList = std::vector<std::unique_ptr<Layer>>;

/// Layers(Conv2D(32, 3), MaxPool2D(), Dense(10))
template <typename... Ls>
LayerList Layers(Ls... layers) {
  LayerList list;
  (list.push_back(std::make_unique<Ls>(std::move(layers))), ...);
  return list;
}

struct SequentialOptions {
  int micro_batch = 32;  ///< examples that go through the network at a time
  uint64_t seed = 0;     ///< of the initial weights and the dropout masks
};

/// Layers one after the other, for micro-batches of a fixed size. Activations pass from layer to
/// layer in the formats that oneDNN computes fastest; what is seen from outside is always in the
/// same order: input (micro_batch, height, width, channels), output (micro_batch, channels), and
/// the parameters as in Keras, one after the other, first layer first, in one block of floats.
///
///   model.PrepareWeights();              after every change of the parameters
///   per micro-batch of the step:
///     write model.input();
///     model.Forward(pass);
///     write model.output_gradient();
///     model.Backward(pass, on_ready);
///
/// Not thread-safe. Computes on OpenMP's threads; results are the same bits for the same number of
/// them on the same kind of machine.
class Sequential {
 public:
  /// Throws Error kInvalidArgument, naming the layer, when one cannot follow the one before it.
  Sequential(const Shape& input, LayerList layers, const SequentialOptions& options);
  Sequential(const Sequential&) = delete;
  Sequential& operator=(const Sequential&) = delete;

  /// With initial weights, equal for equal seeds. Their gradients have no memory yet: give them
  /// some (a DistributedOptimizer does) before the first Backward.
  std::vector<Parameter>& parameters() { return parameters_; }
  size_t parameter_count() const { return values_.count(); }
  int micro_batch() const { return builder_.micro_batch(); }
  size_t classes() const { return output_->shape.count(); }
  /// "conv2d 32 3x3 relu, max_pool2d 2x2, dense 10"
  std::string description() const;

  float* input() { return input_->data; }
  const float* output() const { return output_->data; }
  float* output_gradient() { return output_->gradient; }

  void PrepareWeights();
  void Forward(const Pass& pass);
  /// In the pass marked `last`, calls on_ready(i) as soon as the gradient of parameter i is
  /// complete, last layer first.
  void Backward(const Pass& pass, const std::function<void(size_t)>& on_ready);

 private:
  // A layer with the parameters [first_parameter, first_parameter + parameter_count).
  struct Entry {
    std::unique_ptr<Layer> layer;
    size_t first_parameter = 0, parameter_count = 0;
    bool input_gradient = false;
  };

  std::vector<std::vector<ParameterSpec>> FixShapes(const Shape& input) const;
  void MakeParameters(const std::vector<std::vector<ParameterSpec>>& specs);
  void BuildForward(const Shape& input);
  void BuildBackward();
  bool OutputReadPlain(size_t entry) const;

  Builder builder_;
  std::vector<Entry> entries_;
  FloatArray values_;
  std::vector<Parameter> parameters_;
  Tensor *input_ = nullptr, *output_ = nullptr;
};

}  // namespace dtrun::models

#endif
