#ifndef DTRUN_MODELS_FORMATS_TENSORBOARD_GRAPH_H_
#define DTRUN_MODELS_FORMATS_TENSORBOARD_GRAPH_H_

#include <vector>

#include "models/formats/tensorboard/events.h"
#include "models/layers/layer.h"

namespace dtrun::models {

/// The graph of a network for TensorBoard: "input", then a box per layer with the layer, its
/// parameters and, if it has one, its activation.
///   writer.Graph(GraphOf(model.input_shape(), model.layers()));
std::vector<GraphNode> GraphOf(const Shape& input, const std::vector<const Layer*>& layers);

}  // namespace dtrun::models

#endif
