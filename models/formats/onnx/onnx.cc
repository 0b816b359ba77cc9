#include "models/formats/onnx/onnx.h"

#include <dtrun/error.h>

#include <span>
#include <vector>

#include "models/formats/file.h"
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

// Goes through layers, and through those that they hold, with the converters of their kinds.
class Exporter {
 public:
  Exporter(Sequential& model, const OnnxOptions& options, OnnxGraph& graph)
      : registry_(options.registry), converters_(options.converters), graph_(graph) {
    converters_.merge(BuiltInOnnxConverters());
    for (const Parameter& parameter : model.parameters())
      tensors_[parameter.name] = FloatsOf(parameter.value);
    for (const NamedBuffer& buffer : model.buffers())
      tensors_[buffer.name] = FloatsOf(buffer.buffer);
  }

  /// The layers' names begin with `prefix`; so do those of their tensors, followed by the layer's
  /// index and kind.
  OnnxValue Convert(
      const std::vector<const Layer*>& layers, const Shape& input, const std::string& prefix,
      OnnxValue value) const {
    Shape shape = input;
    for (size_t i = 0; i < layers.size(); ++i) {
      const Layer& layer = *layers[i];
      const auto converter = converters_.find(layer.kind());
      if (converter == converters_.end()) RefuseKind(i, layer);
      const OnnxLayer told = Tell(layer, Text(prefix, i, ".", layer.kind()), shape);
      value = converter->second(told, value, graph_);
      shape = told.output;
    }
    return value;
  }

 private:
  static std::span<const float> FloatsOf(const Buffer& buffer) {
    return {static_cast<const float*>(buffer.data), buffer.count};
  }

  OnnxLayer Tell(const Layer& layer, const std::string& name, const Shape& input) const {
    OnnxLayer told{name, layer.settings(), input, layer.OutputShape(input), {}, {}};
    const std::string prefix = name + ".";
    for (auto t = tensors_.lower_bound(prefix); t != tensors_.end() && t->first.starts_with(prefix);
         ++t)
      told.tensors[t->first.substr(prefix.size())] = t->second;
    told.convert_path = [this, name, input, settings = told.settings](
                            const std::string& path, const OnnxValue& value) {
      const auto layers = registry_.MakeLayers(settings.Layers(path));
      std::vector<const Layer*> views;
      for (const auto& each : layers) views.push_back(each.get());
      return Convert(views, input, name + "." + path, value);
    };
    return told;
  }

  [[noreturn]] void RefuseKind(size_t index, const Layer& layer) const {
    Refuse(Text(
        "layer ", index, " (", layer.description(),
        ") cannot be said in ONNX's words, expected one of the kinds ", KindsOf(converters_)));
  }

  const LayerRegistry& registry_;
  std::map<std::string, OnnxConverter> converters_;
  OnnxGraph& graph_;
  std::map<std::string, std::span<const float>> tensors_;
};

}  // namespace

std::string ToOnnx(Sequential& model, const OnnxOptions& options) {
  if (options.opset < 13 || options.opset > 17)
    Refuse(Text("ONNX operator set ", options.opset, ", expected 13 to 17"));
  if (model.parameter_count() > kMostParameters)
    Refuse(Text(model.parameter_count(), " parameters, ONNX's format holds ", kMostParameters));
  OnnxGraph graph("dtrun");
  const OnnxValue input = graph.Input("input", model.input_shape());
  const Exporter exporter(model, options, graph);
  OnnxValue value = exporter.Convert(model.layers(), model.input_shape(), "layer", input);
  value = graph.Flat(value, "output");
  const bool ends_with_softmax =
      !model.layers().empty() && model.layers().back()->kind() == "softmax";
  if (options.probabilities && !ends_with_softmax) value = Probabilities(value, graph);
  graph.Output(value, options.probabilities ? "probabilities" : "output");
  return graph.ToModel(options.opset);
}

void ExportOnnx(Sequential& model, const std::string& path, const OnnxOptions& options) {
  ReplaceFile(path, ToOnnx(model, options));
}

}  // namespace dtrun::models
