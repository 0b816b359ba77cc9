#ifndef DTRUN_BENCH_NETWORK_PRODUCTS_H_
#define DTRUN_BENCH_NETWORK_PRODUCTS_H_

#include <array>
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

}  // namespace dtrun::bench

#endif
