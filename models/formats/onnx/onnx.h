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

/// What a node of an OnnxGraph gives. Images are (batch, channels, height, width), as ONNX's
/// operators want them; what is flat is (batch, values) and has the values of an image in the order
/// height, width, channels, as Dense reads it.
struct OnnxValue {
  std::string name;
  Shape shape;
  bool flat = false;
};

using OnnxAttribute = std::variant<int64_t, float, std::vector<int64_t>>;

/// A network in ONNX's words, node by node (onnx.ai, "Open Neural Network Exchange Intermediate
/// Representation"). Not thread-safe.
class OnnxGraph {
 public:
  explicit OnnxGraph(const std::string& name) : name_(name) {}

  /// The graph's input.
  OnnxValue Input(const std::string& name, const Shape& shape);
  /// Makes `value` the graph's output, under this name.
  void Output(const OnnxValue& value, const std::string& name);

  /// Adds a node and returns the name of its output, which is the node's.
  std::string Add(
      const std::string& op, const std::string& name, const std::vector<std::string>& inputs,
      const std::map<std::string, OnnxAttribute>& attributes = {});
  /// Adds constants and returns their name.
  std::string Floats(
      const std::string& name, const std::vector<int64_t>& shape, std::span<const float> values);
  std::string Ints(const std::string& name, std::span<const int64_t> values);

  /// The same values, flat or as an image; `name` is that of the nodes which this takes, if any.
  OnnxValue Flat(const OnnxValue& value, const std::string& name);
  OnnxValue Image(const OnnxValue& value, const Shape& shape, const std::string& name);

  /// The model: ONNX's ModelProto of this operator set, in IR version 8.
  std::string ToModel(int opset) const;

 private:
  static constexpr int kInput = 11, kOutput = 12;  // fields of the graph
  void Declare(int field, const OnnxValue& value);

  std::string name_;
  ProtobufWriter nodes_, constants_, ends_;
};

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

#endif  // DTRUN_MODELS_FORMATS_ONNX_ONNX_H_
