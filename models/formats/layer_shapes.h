#ifndef DTRUN_MODELS_FORMATS_LAYER_SHAPES_H_
#define DTRUN_MODELS_FORMATS_LAYER_SHAPES_H_

#include <cstdint>
#include <vector>

#include "models/layers/layer.h"

namespace dtrun::models {

/// What a layer of a network has to do with, without the network being built.
struct LayerShapes {
  const Layer* layer = nullptr;
  Shape input, output;
  std::vector<ParameterSpec> parameters, buffers;
};

/// Of layers one after the other. Throws Error kInvalidArgument, naming the layer, when one cannot
/// follow the one before it, or is so large that its sizes could not be counted (more than 2^24
/// activations of one example, or 2^31 parameters).
std::vector<LayerShapes> ShapesOf(const Shape& input, const std::vector<const Layer*>& layers);

/// Of all values of parameters and buffers.
uint64_t CountOf(const std::vector<LayerShapes>& layers);

}  // namespace dtrun::models

#endif
