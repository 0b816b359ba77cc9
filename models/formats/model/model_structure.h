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

/// A network as it is written down: what model.json holds.
///
///   {"format": "dtrun model", "version": 1, "input_shape": [28, 28, 1], "weights":
///    "weights-1.safetensors", "layers": [{"kind": "dense", "settings": {"units": 10, "activation":
///    "linear"}}, ...], "metadata": {"epoch": "8"}}
struct ModelStructure {
  Shape input;
  std::vector<LayerConfig> layers;
  std::string weights;  ///< name of the file beside it
  std::map<std::string, std::string> metadata;

  bool operator==(const ModelStructure&) const = default;
};

std::string ToJson(const ModelStructure& structure);

/// Throws Error kInvalidArgument: one line with the place, what was found and what was expected.
///   input_shape: [28, 28], expected 3 integers from 1 to 65536
///   layer 2: settings: filters: null, expected a number, text, true, false or a list of layers
/// Whether there are layers of these kinds, and whether they have these settings, is another
/// question (LayerRegistry).
ModelStructure ParseStructure(const std::string& json);

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

#endif  // DTRUN_MODELS_FORMATS_MODEL_MODEL_STRUCTURE_H_
