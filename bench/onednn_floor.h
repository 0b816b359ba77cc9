#ifndef DTRUN_BENCH_ONEDNN_FLOOR_H_
#define DTRUN_BENCH_ONEDNN_FLOOR_H_

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "models/networks/network.h"

namespace dtrun::bench {

/// The shapes of a convolution, or of a dense layer if `size` is 0.
struct ProductShape {
  using Key = std::array<int, 13>;

  models::Shape input, output;
  int size = 0, stride = 1;
  std::array<int, 4> padding = {};  ///< pixels above, below, left, right
  bool bias = true;

  bool convolves() const { return size > 0; }
  /// Equal for equal shapes.
  Key key() const;
  /// MFLOP of one example in one direction.
  double mflop() const;
};

/// The product of a layer of a network.
struct LayerProduct {
  std::string name;  ///< "conv2d 64 3x3 relu"
  ProductShape shape;
  bool input_gradient = false;  ///< whether the backward pass needs the gradient of its input
};

/// The convolutions and dense layers of a network, first layer first, including layers inside
/// residual blocks. Throws Error kInvalidArgument if the products of another layer with parameters
/// are unknown.
std::vector<LayerProduct> ProductsOf(const models::Network& network);

/// One product of a training step. A convolution or a dense layer has a forward product, a product
/// for the gradient of its input and a product for the gradient of its weights.
struct FloorPart {
  std::string name;            ///< "conv2d 64 3x3 relu, backward weights": the first such layer
  int layers = 1;              ///< layers of the network with this product
  std::string implementation;  ///< "jit:avx512_core nChw16c": oneDNN's name and the input's format
  int micro_batch = 0;         ///< examples per call: the fastest number
  int calls = 0;               ///< calls for the whole batch in one layer
  std::function<void()> call;  ///< runs the primitive
  double us_per_example = 0;   ///< in one layer, when the implementation was chosen
};

/// The products of a training step of a network, as oneDNN's primitives alone. For each product, a
/// measurement chooses the fastest of oneDNN's implementations in all formats, at its best
/// micro-batch. Reference implementations are candidates only if oneDNN has no other. Inputs are
/// already in the chosen format. The rest of a step is left out: pooling, dropout, normalisation,
/// loss, sums over micro-batches, changes of format and the optimizer. So a step that computes its
/// products with oneDNN cannot be faster.
///
/// Products of large images (50 MFLOP and more per image) are tried at two micro-batches. Other
/// products are tried at all powers of two that divide the batch. Products share their memory, so
/// the results are meaningless.
class OnednnFloor {
 public:
  /// Chooses the implementations, in f32 or bf16, on OpenMP's threads. Takes up to a minute. Throws
  /// Error kInvalidArgument if the products of a layer with parameters are unknown.
  OnednnFloor(const models::Network& network, DType dtype, int batch);

  /// Runs every product of a step over the batch once.
  void Run() const;
  const std::vector<FloorPart>& parts() const { return parts_; }

 private:
  std::vector<FloorPart> parts_;
};

}  // namespace dtrun::bench

#endif
