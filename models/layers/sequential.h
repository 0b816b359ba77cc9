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
#include "models/layers/compute_device.h"
#include "models/layers/layer.h"
#include "models/layers/network_graph.h"
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

/// Sizes of the passes, the seed and the dtype of a Sequential.
///
/// The head of the network takes `micro_batch` examples at a time. These are so few that the
/// activations between layers stay in a core's private cache. The first layer that needs a plain
/// input or whole chunks ends the head: Dense, Reshape, BatchNorm, Residual, or a PlainLayer. This
/// layer and all layers behind it take a chunk of `micro_batch` * `micro_batches` examples. A chunk
/// is so large that the cost of reading large kernels does not matter.
///
/// If a layer needs the whole share of a rank at once (BatchNorm), a chunk must have room for the
/// share.
struct SequentialOptions {
  int micro_batch = 16;
  int micro_batches = 8;
  uint64_t seed = 0;  ///< of the initial weights and the dropout masks
  /// The dtype that layers compute in: kF32 or kBF16, on a GPU also kF16.
  ///
  /// With kBF16 on the CPU, activations, their gradients and the factors of products are bf16.
  /// Products are summed in f32. Parameters and their gradients stay f32, and gradients are summed
  /// in f32. The weights are copied to bf16 once per step. Layers without bf16 support compute in
  /// f32, and so does the last layer, because the loss reads its output. If the CPU has no
  /// AVX512_BF16, all layers compute in f32. On a GPU, all layers compute in the dtype. Only the
  /// outputs of a last dense layer without ReLU are f32.
  DType dtype = DType::kF32;
  /// For layers that exchange data between ranks (synchronised BatchNorm). If there is such a
  /// layer, the constructor of Sequential is collective and duplicates the communicator. Destroy
  /// the Sequential before the Context.
  Communicator* communicator = nullptr;
  /// The device that computes the network, and whose memory holds the parameters and buffers.
  /// nullptr: Cpu(). Outlives the Sequential.
  ComputeDevice* device = nullptr;
};

/// Layers in sequence, for chunks of a fixed number of examples. Between layers, activations have
/// the formats that oneDNN computes fastest. The public order is always the same: input (chunk,
/// height, width, channels) and output (chunk, channels). Parameters are in Keras's order, first
/// layer first, in one block of floats.
///
///   model.PrepareWeights();          after every change of the parameters or of their addresses
///   per chunk of the step:
///     write model.input();
///     model.Forward(pass, examples);
///     write model.output_gradient();
///     model.Backward(pass, examples, on_ready);
///
/// If a chunk holds fewer examples, set the gradients of the other outputs to zero. Not
/// thread-safe. The CPU computes on OpenMP threads. The result has the same bits for the same
/// number of threads on the same kind of machine.
class Sequential {
 public:
  /// Throws Error kInvalidArgument, with the name of the layer, if a layer cannot follow the layer
  /// before it.
  Sequential(const Shape& input, LayerList layers, const SequentialOptions& options);
  Sequential(const Sequential&) = delete;
  Sequential& operator=(const Sequential&) = delete;

  /// The parameters with their initial weights. Equal seeds give equal weights. The gradients have
  /// no memory at first: assign memory before the first Backward, for example with a
  /// DistributedOptimizer.
  std::vector<Parameter>& parameters() { return parameters_; }
  size_t parameter_count() const { return value_count_; }
  /// State of the layers besides the parameters. Broadcast, save and restore it together with the
  /// parameters.
  const std::vector<NamedBuffer>& buffers() const { return buffers_; }
  /// Returns the values of all parameters, then of all buffers, in host memory: the values
  /// themselves on the CPU, copies on a GPU. Valid until the next call.
  std::vector<NamedBuffer> BorrowWeights();
  /// Takes the values that were written to the borrowed weights. Call PrepareWeights afterwards.
  void ReturnWeights() { host_copies_.Write(device_); }
  /// Shapes of the parameters: {3, 3, 32, 64}, {64}.
  const std::vector<std::vector<int>>& parameter_shapes() const { return parameter_shapes_; }
  int chunk() const { return chunk_; }
  const Shape& input_shape() const { return input_shape_; }
  /// The layers passed to the constructor, in the same order.
  const std::vector<const Layer*>& layers() const { return layers_; }
  /// Number of input and output values of one example.
  size_t inputs() const { return input_shape_.count(); }
  size_t classes() const { return output_shape_.count(); }
  /// Sum of l2 * sum of squares over the parameters with a regulariser. The mean loss of a global
  /// batch plus this sum is the total loss. Backward adds the gradient.
  double RegularizationLoss() const;
  /// True if a layer exchanges data between ranks in training. A rank without examples must then
  /// call Forward and Backward with 0 examples.
  bool synchronizes() const;
  /// The dtype in use on this machine.
  DType dtype() const { return dtype_; }
  /// "conv2d 32 3x3 relu, max_pool2d 2x2, dense 10"
  std::string description() const;
  /// The layers as basic operations. Throws Error kInvalidArgument if a layer has no description.
  NetworkGraph graph() { return DescribeNetwork(Described()); }
  /// The implementations of the heavy layers, per direction, in the order in which they were built.
  const std::vector<LayerImplementation>& implementations() const {
    return network_->implementations();
  }
  /// SlowParts of implementations(). Empty: there are no slow parts.
  std::vector<std::string> slow_parts() const { return SlowParts(implementations()); }

  ComputeDevice& device() { return device_; }
  /// Host memory, also if the device is a GPU.
  float* input() { return network_->input(); }
  const float* output() const { return network_->output(); }
  /// Do not write it between a Backward and the next Forward.
  float* output_gradient() { return network_->output_gradient(); }

  void PrepareWeights() { network_->PrepareWeights(); }
  /// If a layer needs the whole share and a training pass holds only a part of it, throws Error
  /// kInvalidArgument with the name of the layer.
  void Forward(const Pass& pass, int examples);
  /// In the pass marked `last`, calls on_ready(i) as soon as the gradient of parameter i is
  /// complete, last layer first.
  void Backward(const Pass& pass, int examples, const OnReady& on_ready);
  /// For a share without examples, instead of Forward and Backward: its loss gradients are zero.
  void ZeroGradients(const Pass& pass, const OnReady& on_ready);

 private:
  struct LayerSpecs {
    std::vector<ParameterSpec> parameters, buffers;
  };

  std::vector<LayerSpecs> FixShapes();
  void MakeParameters(const std::vector<LayerSpecs>& specs);
  void MakeBuffers(const std::vector<LayerSpecs>& specs);
  std::string ParameterName(size_t i, const ParameterSpec& spec) const;
  NetworkToPlan Described();
  void CheckWholeShare(const Pass& pass) const;
  void AddRegularization(const Pass& pass, size_t parameter);

  Shape input_shape_, output_shape_;
  LayerList owned_layers_;
  std::vector<const Layer*> layers_;
  SequentialOptions options_;
  ComputeDevice& device_;
  int chunk_;
  DType dtype_;
  std::optional<Communicator> communicator_;
  std::vector<PlacedLayer> places_;
  size_t value_count_ = 0;
  std::shared_ptr<void> values_, buffer_values_;
  std::vector<Parameter> parameters_;
  std::vector<double> l2_;  // by parameter
  bool has_penalty_ = false;
  std::vector<NamedBuffer> buffers_;
  std::vector<std::vector<int>> parameter_shapes_;
  HostCopies host_copies_;
  std::unique_ptr<PlannedNetwork> network_;
};

}  // namespace dtrun::models

#endif
