#ifndef DTRUN_MODELS_FORMATS_ONNX_ONNX_GRAPH_H_
#define DTRUN_MODELS_FORMATS_ONNX_ONNX_GRAPH_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "models/formats/protobuf.h"
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

}  // namespace dtrun::models

#endif
