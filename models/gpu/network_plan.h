#ifndef DTRUN_MODELS_GPU_NETWORK_PLAN_H_
#define DTRUN_MODELS_GPU_NETWORK_PLAN_H_

#include <dtrun/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/gpu/kernel_args.h"
#include "models/layers/sequential.h"

namespace dtrun::models {

/// The layout of a network's parameters on a device, and the stages that compute the network there.
/// A plan is pure data. PlanNetwork makes a plan from the CPU's network, which keeps names, shapes
/// and values.

/// The place and the order of a parameter in the flat block of all parameters. On the host, a
/// parameter is (rows, columns), as in Keras.
struct ParameterPlace {
  enum class Order {
    kAsIs,     ///< (rows, padded_columns), padded with zeros
    kFilters,  ///< (columns, rows): one filter after the other, as cuDNN expects
  };

  size_t offset = 0;  ///< in values; a multiple of 128
  size_t rows = 1, columns = 0, padded_columns = 0;
  Order order = Order::kAsIs;

  size_t count() const { return rows * padded_columns; }
  /// Copies `from` (rows, columns) to `to` (count), and back. ToDevice also writes the zeros of the
  /// padding.
  void ToDevice(const float* from, float* to) const;
  void ToHost(const float* from, float* to) const;
};

enum class StageKind {
  kFirstConvolution,  ///< with bias and ReLU
  kConvolution,       ///< without bias and ReLU: the pool behind it applies them
  kPool,
  kDense,   ///< with bias and ReLU
  kOutput,  ///< the last dense layer: logits in f32
};

struct Stage {
  StageKind kind = StageKind::kOutput;
  Shape input = {}, output = {};
  size_t kernel = 0, bias = 0;  ///< indices of parameters; of a pool: see adds_bias
  bool adds_bias = false;       ///< a pool applies `bias` and ReLU of the convolution before it
  DropoutRule dropout = {};     ///< behind a pool or kDense
  bool drops = false;

  /// Values per row in memory, a multiple of 8. Rows of logits may be wider than the number of
  /// classes.
  size_t width() const { return (output.count() + 7) / 8 * 8; }
};

struct NetworkPlan {
  Shape input;  ///< the shape of an example
  int classes = 0;
  std::vector<Stage> stages;
  std::vector<ParameterPlace> parameters;  ///< in the order of the network's parameters
  size_t parameter_count = 0;              ///< values in the flat block; a multiple of 128

  /// Multiplications and additions for one example, forward and backward. A product with a value of
  /// a layer's kernel is 2 operations. It occurs once forward and twice backward. In the first
  /// layer, it occurs only once backward, because the input needs no gradient.
  double OperationsPerExample() const;
  /// A lower bound of the bytes that a step moves per example. Each tensor that lies in memory
  /// between two kernels counts once for each kernel that reads or writes the tensor. A value has
  /// `value_size` bytes.
  double BytesPerExample(size_t value_size) const;
  /// Bytes of device memory for `rows` examples at a time, with parameters and optimizer state. The
  /// data set and the workspace of libraries are not included.
  uint64_t Bytes(uint64_t rows, size_t value_size) const;
};

/// Makes the plan of `model`. `seed` is the network's seed, which selects the dropout masks. Throws
/// Error kInvalidArgument, naming the layer, if a GPU cannot compute a layer. Allowed layers:
///   - 3 x 3 convolutions without padding, with 8, 16, 32, ... 256 filters and a ReLU. The first
///     layer has one input channel. Each other convolution has a pool behind it.
///   - 2 x 2 max pools behind convolutions
///   - dropout behind pools and hidden dense layers
///   - flatten and reshape
///   - dense layers with 8, 16, 32, ... 256 units and a ReLU
///   - a dense layer without a ReLU, which is the last layer
NetworkPlan PlanNetwork(Sequential& model, uint64_t seed);

}  // namespace dtrun::models

#endif
