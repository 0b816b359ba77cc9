#ifndef DTRUN_MODELS_FORMATS_ONNX_ONNX_H_
#define DTRUN_MODELS_FORMATS_ONNX_ONNX_H_

#include <map>
#include <string>

#include "models/formats/onnx/onnx_layers.h"
#include "models/layers/registry.h"
#include "models/layers/sequential.h"

namespace dtrun::models {

struct OnnxOptions {
  int opset = 13;  ///< 13 to 17
  /// The output is "probabilities": a network that ends without a softmax gets one. Otherwise it is
  /// "output", as the network has it.
  bool probabilities = true;
  /// For layers of your own, by kind; they come before the library's. Where layers hold others, the
  /// registry has yours as well.
  std::map<std::string, OnnxConverter> converters = {};
  LayerRegistry registry = LayerRegistry::BuiltIn();
};

/// The network, as it is now, for ONNX Runtime and others: IR version 8. Its input is "input":
/// images (batch, channels, height, width) of the values that the network was trained on (pixels /
/// 255), or (batch, channels) where there is one pixel. Throws Error kInvalidArgument when there is
/// a layer that cannot be said in ONNX's words, which it names, another operator set is asked for,
/// or the model has more than the 2 GB that the format can hold.
std::string ToOnnx(Sequential& model, const OnnxOptions& options = {});

/// Writes that into a file, which is replaced as a whole. Throws Error kSystem, too, with the path
/// and the reason.
void ExportOnnx(Sequential& model, const std::string& path, const OnnxOptions& options = {});

}  // namespace dtrun::models

#endif
