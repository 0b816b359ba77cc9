#ifndef DTRUN_MODELS_GPU_NETWORK_PLAN_H_
#define DTRUN_MODELS_GPU_NETWORK_PLAN_H_

#include <dtrun/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/gpu/kernel_args.h"
#include "models/layers/sequential.h"

namespace dtrun::models {

/// How a network's parameters lie on a device, and by which steps it is computed there: pure data,
/// made from the network of the CPU, which keeps names, shapes and values.

/// Where a parameter lies in the flat block of all of them, and in which order. On the host it is
/// (rows, columns), as Keras has it.
struct ParameterPlace {
  enum class Order {
    kAsIs,     ///< (rows, columns), columns filled up with zeros to `padded_columns`
    kFilters,  ///< (columns, rows): a convolution's filters one after the other, as cuDNN wants
               ///< them
  };

  size_t offset = 0;  ///< in values; a multiple of 128
  size_t rows = 1, columns = 0, padded_columns = 0;
  Order order = Order::kAsIs;

  size_t count() const { return rows * padded_columns; }
  /// `from` (rows, columns) to `to` (count) and back. Zeros between the rows are written.
  void ToDevice(const float* from, float* to) const;
  void ToHost(const float* from, float* to) const;
};

enum class StageKind {
  kFirstConvolution,  ///< with its bias and ReLU
  kConvolution,       ///< without: the pool behind it adds them
  kPool,
  kDense,   ///< with bias and ReLU
  kOutput,  ///< the last dense layer: logits in f32
};

struct Stage {
  StageKind kind = StageKind::kOutput;
  Shape input = {}, output = {};
  size_t kernel = 0, bias = 0;  ///< parameters, of all but pools; a pool's bias: see adds_bias
  bool adds_bias = false;       ///< a pool adds the bias of the convolution before it, and its ReLU
  DropoutRule dropout = {};     ///< behind it; of pools and kDense
  bool drops = false;

  /// Values of a row in memory: of the logits, more than there are classes.
  size_t width() const { return (output.count() + 7) / 8 * 8; }
};

struct NetworkPlan {
  Shape input;  ///< of an example
  int classes = 0;
  std::vector<Stage> stages;
  std::vector<ParameterPlace> parameters;  ///< by parameter of the network
  size_t parameter_count = 0;              ///< of the flat block; a multiple of 128

  /// Multiplications and additions of one example, forward and backward: 2 for each product that a
  /// layer's kernel takes part in, thrice, but twice in the first layer, whose input needs no
  /// gradient.
  double OperationsPerExample() const;
  /// What a step moves at least per example: every tensor that lies in memory between two kernels
  /// of `value_size` bytes a value, once for each kernel that reads or writes it.
  double BytesPerExample(size_t value_size) const;
  /// Device memory for `rows` examples at a time, parameters and optimizer state included, without
  /// the data set and without libraries' workspace.
  uint64_t Bytes(uint64_t rows, size_t value_size) const;
};

/// `seed`: that of the network, which selects the dropout masks. Throws Error kInvalidArgument,
/// naming the layer, for a network with something that cannot be computed on a GPU: layers are 3 x
/// 3 convolutions without padding with 8, 16, 32, ... 256 filters and a ReLU, the first one of one
/// channel and each other with a pool behind it; 2 x 2 max pools behind convolutions; dropout
/// behind pools and hidden dense layers; flatten and reshape; dense layers with 8, 16, ... 256
/// units and a ReLU, and one without as the last one.
NetworkPlan PlanNetwork(Sequential& model, uint64_t seed);

}  // namespace dtrun::models

#endif
