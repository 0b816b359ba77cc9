#include "models/formats/tensorboard/graph.h"

#include <dtrun/error.h>

#include "models/formats/tensorboard/parameter_histograms.h"
#include "models/message_text.h"

namespace dtrun::models {
namespace {

constexpr int64_t kAnyBatch = -1;

std::vector<int64_t> ShapeOf(const Shape& shape) {
  if (shape.pixels() == 1) return {kAnyBatch, shape.channels};
  return {kAnyBatch, shape.height, shape.width, shape.channels};
}

bool HasRelu(const LayerSettings& settings) {
  return settings.Has("activation") && settings.Text("activation") == "relu";
}

// Appends the nodes of one layer that reads `input`; returns the name of the one that others read.
std::string AppendLayer(
    const Layer& layer, const std::string& box, const std::string& input, const Shape& shape,
    std::vector<GraphNode>& nodes) {
  GraphNode node{Text(box, "/", layer.kind()), layer.kind(), {input}, {}, layer.settings()};
  for (const ParameterSpec& spec : layer.ParameterSpecs(shape)) {
    const std::string name = Text(box, "/", spec.name);
    nodes.push_back({name, "Variable", {}, {spec.shape.begin(), spec.shape.end()}, {}});
    node.inputs.push_back(name);
  }
  node.shape = ShapeOf(layer.OutputShape(shape));
  nodes.push_back(node);
  if (!HasRelu(node.attributes)) return node.name;
  nodes.push_back({Text(box, "/relu"), "Relu", {node.name}, node.shape, {}});
  return nodes.back().name;
}

}  // namespace

std::vector<GraphNode> GraphOf(const Shape& input, const std::vector<const Layer*>& layers) {
  std::vector<GraphNode> nodes = {{"input", "Placeholder", {}, ShapeOf(input), {}}};
  std::string last = "input";
  Shape shape = input;
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string box = Text("layer", i, "_", layers[i]->kind());
    last = AppendLayer(*layers[i], box, last, shape, nodes);
    shape = layers[i]->OutputShape(shape);
  }
  return nodes;
}

void WriteHistograms(
    const std::vector<Parameter>& parameters, int64_t step, SummaryWriter& writer) {
  for (const Parameter& parameter : parameters) {
    const Buffer& value = parameter.value;
    if (value.dtype != DType::kF32) {
      throw Error(
          ErrorCode::kInvalidArgument,
          Text(parameter.name, ": values of ", NameOf(value.dtype), ", expected f32"));
    }
    writer.Histogram(
        parameter.name + "/histogram", {static_cast<const float*>(value.data), value.count}, step);
  }
}

}  // namespace dtrun::models
