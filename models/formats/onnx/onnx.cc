#include "models/formats/onnx/onnx.h"

#include <dtrun/error.h>

#include "models/formats/file.h"
#include "models/formats/layer_shapes.h"
#include "models/text.h"

namespace dtrun::models {
namespace {

constexpr uint64_t kMostParameters = (uint64_t(1) << 31) / sizeof(float) - 10'000'000;

[[noreturn]] void Refuse(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, text);
}

std::string KindsOf(const std::map<std::string, OnnxConverter>& converters) {
  std::string kinds;
  for (const auto& converter : converters)
    kinds += Text(kinds.empty() ? "" : ", ", converter.first);
  return kinds;
}

OnnxValue Probabilities(const OnnxValue& output, OnnxGraph& graph) {
  const std::string node = graph.Add("Softmax", "softmax", {output.name}, {{"axis", int64_t{1}}});
  return {node, output.shape, output.flat};
}

}  // namespace

// Layer by layer; the parameters come in the order in which the layers name them.
std::string ToOnnx(Sequential& model, const OnnxOptions& options) {
  if (options.opset < 13 || options.opset > 17)
    Refuse(Text("ONNX operator set ", options.opset, ", expected 13 to 17"));
  if (model.parameter_count() > kMostParameters)
    Refuse(Text(model.parameter_count(), " parameters, ONNX's format holds ", kMostParameters));
  std::map<std::string, OnnxConverter> converters = options.converters;
  converters.merge(BuiltInOnnxConverters());

  OnnxGraph graph("dtrun");
  OnnxValue value = graph.Input("input", model.input_shape());
  auto parameter = model.parameters().begin();
  size_t index = 0;
  for (const LayerShapes& shapes : ShapesOf(model.input_shape(), model.layers())) {
    const std::string kind = shapes.layer->kind();
    OnnxLayer layer{
        Text("layer", index, ".", kind), shapes.layer->settings(), shapes.input, shapes.output, {}};
    for (const ParameterSpec& spec : shapes.parameters) {
      const Buffer& buffer = (parameter++)->value;
      layer.tensors[spec.name] = {static_cast<const float*>(buffer.data), buffer.count};
    }
    const auto converter = converters.find(kind);
    if (converter == converters.end()) {
      Refuse(Text(
          "layer ", index, " (", shapes.layer->description(),
          ") cannot be said in ONNX's words, expected one of the kinds ", KindsOf(converters)));
    }
    value = converter->second(layer, value, graph);
    ++index;
  }
  const bool ends_with_softmax =
      !model.layers().empty() && model.layers().back()->kind() == "softmax";
  value = graph.Flat(value, "output");
  if (options.probabilities && !ends_with_softmax) value = Probabilities(value, graph);
  graph.Output(value, options.probabilities ? "probabilities" : "output");
  return graph.ToModel(options.opset);
}

void ExportOnnx(Sequential& model, const std::string& path, const OnnxOptions& options) {
  ReplaceFile(path, ToOnnx(model, options));
}

}  // namespace dtrun::models
