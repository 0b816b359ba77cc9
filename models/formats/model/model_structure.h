#ifndef DTRUN_MODELS_FORMATS_MODEL_MODEL_STRUCTURE_H_
#define DTRUN_MODELS_FORMATS_MODEL_MODEL_STRUCTURE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/layers/layer.h"
#include "models/layers/settings.h"
#include "models/layers/tensor.h"

namespace dtrun::models {

/// The content of model.json: the structure of a saved network.
///
///   {"format": "dtrun model", "version": 1, "input_shape": [28, 28, 1], "weights":
///    "weights-1.safetensors", "layers": [{"kind": "dense", "settings": {"units": 10, "activation":
///    "linear"}}, ...], "metadata": {"epoch": "8"}}
struct ModelStructure {
  Shape input;
  std::vector<LayerConfig> layers;
  std::string weights;  ///< name of the weights file in the same folder
  std::map<std::string, std::string> metadata;

  bool operator==(const ModelStructure&) const = default;
};

std::string ToJson(const ModelStructure& structure);

/// Throws Error kInvalidArgument with one line: the place, the value found and the value expected.
///   input_shape: [28, 28], expected 3 integers from 1 to 65536
///   layer 2: settings: filters: null, expected a number, text, true, false or a list of layers
/// Does not check the kinds of layers and their settings; LayerRegistry does.
ModelStructure ParseStructure(const std::string& json);

/// The shapes of a layer at its place in a network. The network need not exist.
struct LayerShapes {
  const Layer* layer = nullptr;
  Shape input, output;
  std::vector<ParameterSpec> parameters, buffers;
};

/// The shapes of layers in sequence. Throws Error kInvalidArgument that names the layer, if a layer
/// does not fit the output of the layer before it. Also if a layer has more than 2^24 activations
/// per example, or more than 2^31 values in one parameter or buffer.
std::vector<LayerShapes> ShapesOf(const Shape& input, const std::vector<const Layer*>& layers);

/// The number of values in all parameters and buffers.
uint64_t CountOf(const std::vector<LayerShapes>& layers);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_FORMATS_MODEL_MODEL_STRUCTURE_H_
