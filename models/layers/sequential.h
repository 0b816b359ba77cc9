#ifndef DTRUN_MODELS_LAYERS_SEQUENTIAL_H_
#define DTRUN_MODELS_LAYERS_SEQUENTIAL_H_

#include <dtrun/communicator.h>
#include <dtrun/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/layers/builder.h"
#include "models/layers/layer.h"
#include "models/layers/tensor.h"

namespace dtrun::models {

/// Called with the index of a parameter whose gradient is complete.
using OnReady = std::function<void(size_t)>;
using LayerList = std::vector<std::unique_ptr<Layer>>;

/// Layers(Conv2D(32, 3), MaxPool2D(), Dense(10))
template <typename... Ls>
LayerList Layers(Ls... layers) {
  LayerList list;
  (list.push_back(std::make_unique<Ls>(std::move(layers))), ...);
  return list;
}

/// Layers before the first dense one take `micro_batch` examples at a time: so few that what passes
/// from one to the next stays in a core's own cache. The others take `micro_batches` times as many:
/// so many that reading their large kernels does not count.
///
/// A network with a layer that needs the whole share of a rank at once (BatchNorm) has to have room
/// for it: micro_batch * micro_batches examples.
struct SequentialOptions {
  int micro_batch = 16;
  int micro_batches = 8;
  uint64_t seed = 0;  ///< of the initial weights and the dropout masks
  /// What layers compute in: kF32 or kBF16.
  ///
  /// In bf16, activations, their gradients and what layers multiply by are bf16; products are
  /// summed in f32. Parameters stay f32, and so do their gradients, which are summed in f32: bf16
  /// copies of the weights are made once per step. Layers that know no bf16 compute in f32, and so
  /// does the last one, whose output the loss reads. Where the CPU has no AVX512_BF16, all is f32;
  /// where it has, but without AVX512_BF16, oneDNN emulates it, which is right and slow.
  DType dtype = DType::kF32;
  /// Between the ranks, for layers that exchange data (synchronised BatchNorm). Sequential's
  /// constructor duplicates it and so is collective then; destroy it before the Context.
  Communicator* communicator = nullptr;
};

/// Layers one after the other, for chunks of a fixed number of examples. Activations pass from
/// layer to layer in the formats that oneDNN computes fastest; what is seen from outside is always
/// in the same order: input (chunk, height, width, channels), output (chunk, channels), and the
/// parameters as in Keras, one after the other, first layer first, in one block of floats.
///
///   model.PrepareWeights();              after every change of the parameters, also of their place
///   per chunk of the step:
///     write model.input();
///     model.Forward(pass, examples);
///     write model.output_gradient();
///     model.Backward(pass, examples, on_ready);
///
/// A chunk may hold fewer examples; then the gradients of the other outputs have to be zero.
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
  /// What the layers keep besides: broadcast, save and restore it together with the parameters.
  const std::vector<NamedBuffer>& buffers() const { return buffers_; }
  /// By parameter: {3, 3, 32, 64}, {64}.
  const std::vector<std::vector<int>>& parameter_shapes() const { return parameter_shapes_; }
  int chunk() const { return builder_.chunk(); }
  const Shape& input_shape() const { return input_shape_; }
  /// The layers that it was made with, in that order.
  const std::vector<const Layer*>& layers() const { return layers_; }
  /// Values of one example, and of its output.
  size_t inputs() const { return input_shape_.count(); }
  size_t classes() const { return output_->shape.count(); }
  /// Sum over the parameters with a regulariser of l2 * sum of squares: what is added to the mean
  /// loss of a global batch. Backward adds its gradient.
  double RegularizationLoss() const;
  /// Whether a layer exchanges data between ranks in training: then a rank without examples calls
  /// Forward and Backward as well, with 0 examples.
  bool synchronizes() const;
  /// What it computes in here: kF32 or kBF16.
  DType dtype() const { return dtype_; }
  /// "conv2d 32 3x3 relu, max_pool2d 2x2, dense 10"
  std::string description() const;
  /// What computes the heavy layers, direction by direction, in the order in which they were built.
  const std::vector<LayerImplementation>& implementations() const {
    return builder_.implementations();
  }
  /// SlowParts of these; empty: none.
  std::vector<std::string> slow_parts() const { return SlowParts(implementations()); }

  float* input() { return input_; }
  const float* output() const { return output_->data; }
  float* output_gradient() { return output_->gradient; }

  void PrepareWeights();
  /// Throws Error kInvalidArgument, naming the layer, when one needs the whole share and the pass
  /// is only a part of it.
  void Forward(const Pass& pass, int examples);
  /// In the pass marked `last`, calls on_ready(i) as soon as the gradient of parameter i is
  /// complete, last layer first.
  void Backward(const Pass& pass, int examples, const OnReady& on_ready);
  /// Instead of both, for a share without examples: its part of the losses' gradients is zero.
  void ZeroGradients(const Pass& pass, const OnReady& on_ready);

 private:
  // A layer with the parameters [first_parameter, first_parameter + parameter_count).
  struct Entry {
    std::unique_ptr<Layer> layer;
    size_t first_parameter = 0, parameter_count = 0, first_buffer = 0;
    Tensor* output = nullptr;
    bool input_gradient = false;
    bool converts = false;  // not the user's: brings tensors into another format or dtype
  };
  struct LayerSpecs {
    std::vector<ParameterSpec> parameters, buffers;
  };

  std::vector<LayerSpecs> FixShapes(const Shape& input) const;
  void MakeParameters(const std::vector<LayerSpecs>& specs);
  void MakeBuffers(const std::vector<LayerSpecs>& specs);
  std::string ParameterName(size_t i, const ParameterSpec& spec) const;
  void NameEntry(size_t i);
  void BuildForward(const Shape& input);
  Tensor* BuildEntry(size_t i, Tensor* input);
  Tensor* InsertReorder(size_t i, Tensor* input);
  DType DtypeOf(size_t i) const;
  void BuildBackward();
  void ReleaseGradientOf(size_t i);
  void CheckWholeShare(const Pass& pass) const;
  void AddRegularization(const Pass& pass, size_t parameter);
  void SayWhatIsRead(size_t reader);
  int MicroBatchesOf(int examples) const;
  Pass PassOf(const Pass& chunk, int micro_batch, int micro_batches) const;
  void BackwardEntry(Entry& entry, const Pass& pass, const OnReady& on_ready);

  Shape input_shape_;
  std::vector<const Layer*> layers_;
  std::optional<Communicator> communicator_;
  Builder builder_;
  DType dtype_;
  DType wanted_dtype_ = DType::kF32;  // by who reads the tensor at hand
  std::vector<Entry> entries_;
  size_t head_ = 0;  // entries that take micro-batches
  FloatArray values_;
  std::vector<Parameter> parameters_;
  std::vector<double> l2_;  // of the parameters
  FloatArray buffer_values_;
  std::vector<NamedBuffer> buffers_;
  Tensor* input_tensor_ = nullptr;
  std::vector<std::vector<int>> parameter_shapes_;
  float* input_ = nullptr;
  Tensor* output_ = nullptr;
};

}  // namespace dtrun::models

#endif
