#ifndef DTRUN_BENCH_ONEDNN_FLOOR_H_
#define DTRUN_BENCH_ONEDNN_FLOOR_H_

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "models/networks/network.h"

namespace dtrun::bench {

/// The shapes of a convolution or, with a kernel of size 0, of a dense layer.
struct ProductShape {
  using Key = std::array<int, 13>;

  models::Shape input, output;
  int size = 0, stride = 1;
  std::array<int, 4> padding = {};  ///< pixels above, below, left, right
  bool bias = true;

  bool convolves() const { return size > 0; }
  /// Equal for equal shapes.
  Key key() const;
  /// Of one example, in one direction.
  double mflop() const;
};

/// What a layer of a network multiplies.
struct LayerProduct {
  std::string name;  ///< "conv2d 64 3x3 relu"
  ProductShape shape;
  bool input_gradient = false;  ///< whether the way back needs the gradient of its input
};

/// The convolutions and dense layers of a network, first layer first, also those inside residual
/// blocks. Throws Error kInvalidArgument when another layer has parameters whose products are not
/// known.
std::vector<LayerProduct> ProductsOf(const models::Network& network);

/// One of the products of a training step: what a convolution or a dense layer computes on its way
/// forward, or for the gradient of its input or of its weights.
struct FloorPart {
  std::string name;            ///< "conv2d 64 3x3 relu, backward weights": the first such layer
  int layers = 1;              ///< of the network, that have this very product
  std::string implementation;  ///< "jit:avx512_core nChw16c": oneDNN's, and the input's format
  int micro_batch = 0;         ///< examples of a call: those at which it is fastest
  int calls = 0;               ///< for the whole batch, of one layer
  std::function<void()> call;  ///< the primitive
  double us_per_example = 0;   ///< of one layer, as it was when the implementation was chosen
};

/// The products of a training step of a network, as oneDNN's primitives alone. For each product the
/// fastest of oneDNN's implementations in all formats is chosen by measurement, at its own best
/// micro-batch; a reference implementation only if oneDNN has no other. Inputs lie ready in the
/// chosen format. Nothing else that a step needs is in it: no pooling, dropout, normalisation,
/// loss, sum over micro-batches, change of format or optimizer. So no step that computes its
/// products with oneDNN can be faster.
///
/// Products of large images (50 MFLOP and more per image) are tried at two micro-batches, others at
/// all powers of two that divide the batch. Products share their memory, so results are
/// meaningless.
class OnednnFloor {
 public:
  /// In f32 or bf16, on OpenMP's threads; takes up to a minute. Throws Error kInvalidArgument when
  /// a layer with parameters is one whose products it does not know.
  OnednnFloor(const models::Network& network, DType dtype, int batch);

  /// Every product of a step over the batch, once.
  void Run() const;
  const std::vector<FloorPart>& parts() const { return parts_; }

 private:
  std::vector<FloorPart> parts_;
};

}  // namespace dtrun::bench

#endif
