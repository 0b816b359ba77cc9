#ifndef DTRUN_MODELS_LAYERS_NETWORK_GRAPH_H_
#define DTRUN_MODELS_LAYERS_NETWORK_GRAPH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "models/layers/compute_device.h"
#include "models/layers/layer.h"
#include "models/layers/settings.h"
#include "models/layers/tensor.h"
#include "models/random/philox.h"

namespace dtrun::models {

/// The basic operations of networks. The formulas are those of the layers of the same names. All
/// have one input, except kAdd.
enum class OperationKind {
  kConvolution,        ///< parameters: kernel and, unless absent, bias; window
  kDense,              ///< parameters: kernel, bias
  kMaxPool,            ///< window
  kAveragePool,        ///< window
  kGlobalAveragePool,  ///< the mean of each channel over all pixels
  kBatchNorm,          ///< parameters: gamma, beta; buffers: moving mean and variance
  kRelu,               ///< max(x, 0)
  kDropout,            ///< only in training
  kSoftmax,            ///< over the channels of each pixel
  kAdd,                ///< the sum of two inputs of the same shape
  kReshape,            ///< the same values in another shape
};

/// "convolution"
const char* NameOf(OperationKind kind);

/// Which values dropout keeps: the draws of Philox (models/random/philox.h) below `keep_below`,
/// which are 16 bits. Kept values are multiplied by `scale`.
struct DropoutDraws {
  uint32_t keep_below = 65536;
  float scale = 1;
  PhiloxKey key = {};
  uint32_t domain = 0;
};

/// The constants of a batch normalisation, as in BatchNormOptions.
struct NormalizationRule {
  double momentum = 0.99, epsilon = 1e-3;
  bool synchronized = false;
};

/// One operation. Inputs and outputs are indices of NetworkGraph::shapes, parameters and buffers
/// are indices in the network's lists.
struct Operation {
  OperationKind kind = OperationKind::kReshape;
  std::vector<size_t> inputs;
  std::vector<size_t> parameters = {}, buffers = {};
  Window window = {};
  DropoutDraws draws = {};
  NormalizationRule normalization = {};
  /// A ReLU follows, and `output` is its result (FuseRelus).
  bool relu = false;
  size_t output = 0;       ///< set by NetworkGraph::Add
  std::string layer = "";  ///< set by NetworkGraph::Add: "layer 2 (conv2d 64 3x3 relu)"
};

/// A network as a list of basic operations in the order of the forward pass. The graph is pure
/// data: layers describe themselves in it (Layer::Describe), and a device plans it.
class NetworkGraph {
 public:
  NetworkGraph(const Shape& input, uint64_t seed) : shapes_{input}, seed_(seed) {}

  /// The shapes of all values. Value 0 is the input of the network.
  const std::vector<Shape>& shapes() const { return shapes_; }
  const std::vector<Operation>& operations() const { return operations_; }
  /// The value that the network returns.
  size_t output() const { return output_; }
  void set_output(size_t value) { output_ = value; }
  uint64_t seed() const { return seed_; }

  // For layers.

  /// The layer that is being described: its index, which selects random numbers, and its name.
  uint32_t layer_index = 0;
  std::string layer_name;

  /// Appends an operation of the current layer, and returns its output.
  size_t Add(Operation operation, const Shape& output);
  /// Appends a ReLU if `activation` is one. Returns the result.
  size_t AddActivation(size_t input, Activation activation);
  /// Returns the indices of the next `count` parameters (buffers) of the network.
  std::vector<size_t> TakeParameters(size_t count);
  std::vector<size_t> TakeBuffers(size_t count);

 private:
  std::vector<Shape> shapes_;
  std::vector<Operation> operations_;
  size_t output_ = 0, next_parameter_ = 0, next_buffer_ = 0;
  uint64_t seed_;
};

/// Describes all layers. Throws Error kInvalidArgument, with the name of the layer, if a layer has
/// no description.
NetworkGraph DescribeNetwork(const NetworkToPlan& network);

/// A rewrite: each ReLU that alone reads the output of a convolution, a dense layer, a batch
/// normalisation or a sum becomes a part of that operation.
NetworkGraph FuseRelus(const NetworkGraph& graph);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_LAYERS_NETWORK_GRAPH_H_
