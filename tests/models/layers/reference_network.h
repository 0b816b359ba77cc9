#ifndef DTRUN_TESTS_MODELS_LAYERS_REFERENCE_NETWORK_H_
#define DTRUN_TESTS_MODELS_LAYERS_REFERENCE_NETWORK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "models/layers/conv2d.h"
#include "models/layers/sequential.h"

namespace dtrun::testing {

/// A layer of a network that is built twice: from the product's layers and from reference layers.
struct LayerText {
  enum Kind { kConv, kPool, kDropout, kDense } kind;
  int n = 0;     ///< filters, window or units
  int size = 0;  ///< of the convolution's kernel
  bool relu = false;
  double rate = 0;
  models::Conv2DOptions options = {};  ///< of a convolution; its activation is `relu`
};

LayerText Conv(int filters, int size, bool relu);
LayerText StridedConv(int filters, int size, const models::Conv2DOptions& options);
LayerText Pool(int window);
LayerText Drop(double rate);
LayerText Fully(int units, bool relu);

models::LayerList MakeLayers(const std::vector<LayerText>& network);

/// The place of an example, for its dropout masks.
struct Place {
  uint64_t seed = 0, step = 0;
  uint32_t position = 0;
  bool training = false;
};

/// The cross-entropy of one example in double precision. `parameters` are in the order of
/// Sequential::parameters(), one after the other.
double ReferenceLoss(
    const models::Shape& input, const std::vector<LayerText>& network,
    const std::vector<double>& parameters, const std::vector<double>& example, size_t label,
    const Place& place);

/// Whether dropout layer `layer` keeps element `element` (in the order height, width, channels).
/// Computed from single numbers of the generator.
bool ReferenceKeeps(const Place& place, uint32_t layer, size_t element, double rate);

}  // namespace dtrun::testing

#endif
