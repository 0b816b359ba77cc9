#ifndef DTRUN_MODELS_FORMATS_ONNX_ONNX_LAYERS_H_
#define DTRUN_MODELS_FORMATS_ONNX_ONNX_LAYERS_H_

#include <functional>
#include <map>
#include <span>
#include <string>

#include "models/formats/onnx/onnx_graph.h"
#include "models/layers/settings.h"

namespace dtrun::models {

/// A layer that is to be said in ONNX's words.
struct OnnxLayer {
  std::string name;  ///< of its nodes: "layer3.conv2d"
  LayerSettings settings;
  Shape input, output;
  /// Parameters and buffers by the names that the layer gives them, in the layer's own order:
  /// "kernel" of a Conv2D is (size, size, input channels, filters).
  std::map<std::string, std::span<const float>> tensors;
  /// Adds the nodes of layers that this one holds, one after the other: those of its setting
  /// `path`, whose parameters have names such as "main0.conv2d.kernel". Returns what the last
  /// gives.
  std::function<OnnxValue(const std::string& path, const OnnxValue& input)> convert_path;
};

/// Adds the layer's nodes, which read `input`, as they are when nothing is trained (no dropout).
using OnnxConverter =
    std::function<OnnxValue(const OnnxLayer& layer, const OnnxValue& input, OnnxGraph& graph)>;

/// For this library's layers, by their kinds.
std::map<std::string, OnnxConverter> BuiltInOnnxConverters();

}  // namespace dtrun::models

#endif
