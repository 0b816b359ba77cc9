#ifndef DTRUN_MODELS_FORMATS_ONNX_ONNX_H_
#define DTRUN_MODELS_FORMATS_ONNX_ONNX_H_

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "models/formats/protobuf.h"
#include "models/layers/registry.h"
#include "models/layers/sequential.h"
#include "models/layers/settings.h"
#include "models/layers/tensor.h"

namespace dtrun::models {

/// The output of a node in an OnnxGraph. An image is (batch, channels, height, width), as ONNX's
/// operators require. A flat value is (batch, values). Its values are in the order height, width,
/// channels, which Dense reads.
struct OnnxValue {
  std::string name;
  Shape shape;
  bool flat = false;
};

using OnnxAttribute = std::variant<int64_t, float, std::vector<int64_t>>;

/// A network as an ONNX graph, node by node (onnx.ai, "Open Neural Network Exchange Intermediate
/// Representation"). Not thread-safe.
class OnnxGraph {
 public:
  explicit OnnxGraph(const std::string& name) : name_(name) {}

  /// Declares the input of the graph.
  OnnxValue Input(const std::string& name, const Shape& shape);
  /// Makes `value` the output of the graph, under the name `name`.
  void Output(const OnnxValue& value, const std::string& name);

  /// Adds a node and returns the name of its output. The output has the node's name.
  std::string Add(
      const std::string& op, const std::string& name, const std::vector<std::string>& inputs,
      const std::map<std::string, OnnxAttribute>& attributes = {});
  /// These add constants and return their name.
  std::string Floats(
      const std::string& name, const std::vector<int64_t>& shape, std::span<const float> values);
  std::string Ints(const std::string& name, std::span<const int64_t> values);

  /// Return the same values as a flat value or as an image. They add nodes with the prefix `name`
  /// if the order or shape has to change.
  OnnxValue Flat(const OnnxValue& value, const std::string& name);
  OnnxValue Image(const OnnxValue& value, const Shape& shape, const std::string& name);

  /// Serialises the graph as an ONNX ModelProto with this operator set, in IR version 8.
  std::string ToModel(int opset) const;

 private:
  static constexpr int kInput = 11, kOutput = 12;  // fields of the graph
  void Declare(int field, const OnnxValue& value);

  std::string name_;
  ProtobufWriter nodes_, constants_, ends_;
};

/// The arguments of an OnnxConverter for one layer.
struct OnnxLayer {
  std::string name;  ///< prefix of its nodes: "layer3.conv2d"
  LayerSettings settings;
  Shape input, output;
  /// Parameters and buffers by the layer's own names, in the layer's own order. For example,
  /// "kernel" of a Conv2D is (size, size, input channels, filters).
  std::map<std::string, std::span<const float>> tensors;
  /// Adds the nodes of the layers in this layer's setting `path`, one after the other. Their
  /// parameters have names such as "main0.conv2d.kernel". Returns the output of the last layer.
  std::function<OnnxValue(const std::string& path, const OnnxValue& input)> convert_path;
};

/// Adds the nodes of a layer for inference (without dropout). The nodes read `input`.
using OnnxConverter =
    std::function<OnnxValue(const OnnxLayer& layer, const OnnxValue& input, OnnxGraph& graph)>;

/// The converters of this library's layers, by kind.
std::map<std::string, OnnxConverter> BuiltInOnnxConverters();

struct OnnxOptions {
  int opset = 13;  ///< 13 to 17
  /// True: the output is "probabilities", and a network without a softmax at its end gets one.
  /// False: the output is "output", as the network computes it.
  bool probabilities = true;
  /// Converters of your own layers, by kind. They take precedence over the library's converters. If
  /// your layers are inside other layers, `registry` must have them too.
  std::map<std::string, OnnxConverter> converters = {};
  LayerRegistry registry = LayerRegistry::BuiltIn();
};

/// Converts the network, with its current weights, to an ONNX model for ONNX Runtime and others, in
/// IR version 8. The input is "input": images (batch, channels, height, width) with the values of
/// the training, pixels / 255. For networks with one pixel as input, it is (batch, channels).
///
/// Throws Error kInvalidArgument:
/// - A layer has no converter. The error names the layer.
/// - The operator set is outside 13 to 17.
/// - The parameters exceed the 2 GB of the format.
std::string ToOnnx(Sequential& model, const OnnxOptions& options = {});

/// Writes the model of ToOnnx to a file. An existing file is replaced atomically. Throws Error
/// kSystem too, with the path and the reason.
void ExportOnnx(Sequential& model, const std::string& path, const OnnxOptions& options = {});

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_FORMATS_ONNX_ONNX_H_
